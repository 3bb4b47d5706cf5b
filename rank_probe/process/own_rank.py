"""Which rank this process speaks for, and since when it is certain."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from rank_probe.process import children, identity
from rank_probe.process.identity import Identity
from rank_probe.torch_hooks import process_group


class OwnRank:
    """The rank that this process is, as far as is known; it never speaks for another's.

    torch's process group decides once it exists. Before that, the launcher's variables decide if
    they describe this very process (identity.is_certain). Otherwise the rank stays unknown until
    the first step, because a launcher's task may start ranks that inherit its variables.

    *environment* is read again when the rank becomes known: the script may have set variables.
    *given* overrides it. *has_stepped* says whether a whole step was timed.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        given: Mapping[str, str],
        has_stepped: Callable[[], bool],
    ) -> None:
        self._environment = environment
        self._given = given
        self._has_stepped = has_stepped
        self._inherits = children.is_child()
        self._is_certain = identity.is_certain(environment)
        self._group: tuple[int, int] | None = None
        self._me: Identity | None = None
        self._is_over = False
        self._lock = threading.Lock()  # Two threads must not both find that a number was given up.
        self._given_up: Identity | None = None
        self.peer_group: str | None = None
        self.gpu_model = ""
        self.since: float | None = None  # when it got the rank, if it had another before
        self.formed: float | None = None  # when its group was formed anew

    def is_rank(self) -> bool:
        """Whether it is a rank before it trains; its children are then its helpers."""
        return self._is_certain or process_group.rank_and_world_size() is not None

    def who(self) -> Identity | None:
        """Return this rank; None while it is unknown."""
        with self._lock:
            self._look()
        if self._me is None or self._is_over:
            return None
        if self.peer_group and self.peer_group != self._me.peer_group:
            self._me = replace(self._me, peer_group=self.peer_group)
        return self._me

    def group_is_new(self, *, is_first: bool) -> None:
        """Record that the process group was formed now; *is_first*: this process's first group.

        A spare that joins a running job may be older than the ranks that it replaces.
        """
        is_known = self._me is not None or (self._is_certain and not self._inherits)
        self.who()
        if not (is_first and is_known):
            self.formed = time.time()

    def _look(self) -> None:
        group = process_group.rank_and_world_size() or self._group  # It may have been destroyed.
        if self._me is None or group != self._group:  # Otherwise nothing has changed.
            self._group = group
            place = self._find_place()
            if place is not None:
                self._become(place)

    def given_up(self) -> Identity | None:
        """Return, once, the rank that this process was before it became another."""
        gone, self._given_up = self._given_up, None
        return gone

    def end(self) -> None:
        """Speak for nobody any more."""
        self._is_over = True

    def _find_place(self) -> tuple[int, int] | None:
        launched = identity.from_environment(self._variables())
        # A group of one within a larger job tells nothing of the job, and all ranks may have it.
        if self._group is not None and (
            self._group[1] > 1 or launched is None or launched.world_size == 1
        ):
            return self._group
        if self._inherits and self._is_certain:
            return None  # These variables name the parent, which is the rank.
        if launched is not None and (self._is_certain or self._has_stepped()):
            return launched.rank, launched.world_size
        return (0, 1) if self._has_stepped() else None

    def _become(self, place: tuple[int, int]) -> None:
        before, self._me = self._me, self._identify(place)
        if before is not None and (before.job_id, before.rank) != (self._me.job_id, place[0]):
            self._given_up, self.since = before, time.time()

    def _identify(self, place: tuple[int, int]) -> Identity:
        known = identity.with_namespace(self._variables())
        me = identity.for_rank(known, *place)
        if (index := children.index()) is not None:
            return replace(me, local_rank=str(index))
        launched = identity.from_environment(known)
        if launched is None or (launched.rank, launched.world_size) == place:
            return me
        # The scheduler counts its tasks, which these ranks are not.
        return replace(me, local_rank=known.get("LOCAL_RANK", ""))

    def _variables(self) -> dict[str, str]:
        return {**self._environment, **self._given}
