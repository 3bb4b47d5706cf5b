"""The per-step join: late ranks and their cost, found through the job's own store.

Each rank overwrites one key with its latest steps every second or so. Rank 0 merges the steps that
all ranks have posted and judges them. It overwrites one key per rank with the rank's result, and
one key with the verdict on the job; each rank reads both. This needs no collective and no clock,
and the store does not grow.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from rank_probe.guest.guard import failures, log, never_raise
from rank_probe.join.figures import known_figures
from rank_probe.join.result import JoinResult, added, counters
from rank_probe.join.rounds import Rounds
from rank_probe.join.store import PlaceInJob, Store
from rank_probe.judge.verdict import WARMING_UP
from rank_probe.measure.steps import Steps
from rank_probe.process.identity import Identity

# Range of the length of a round, as a share of the period.
JITTER: Final = 0.9, 1.1
# From this share on, the joined steps are a good sample of all steps. The rules use the same
# threshold.
ENOUGH_COVERAGE: Final = 0.5
# Much longer than any round takes: the store has stopped answering.
STUCK_SECONDS: Final = 60.0
# If the store answers while the interpreter ends, a thread inside the store aborts the process (a
# C++ frame cannot be unwound), so closing waits a little for a slow store.
STOP_SECONDS: Final = 5.0
# After this many failed rounds without a verdict in between, the next will fail as well.
MOST_FAILED: Final = 5


class GroupToJoin(NamedTuple):
    """A process group: what opens its store, this rank's *place* in it, and what it compares.

    *who* returns the current peer group, *steps_before* is how many of the *steps* this process had
    counted when the group was formed. *work* counts the tokens, or else the samples, of this
    rank's batches; *facts* is what this rank knows of itself.
    """

    connect: Callable[[], Store]
    place: PlaceInJob
    steps: Steps
    who: Callable[[], Identity | None]
    steps_before: int = 0
    work: Callable[[], float] = float
    facts: Callable[[], Mapping[str, Any]] = dict


class Membership:
    """This rank's part in the join of one process group, in a daemon thread of its own.

    The first failure of the store ends it for good, quietly. Other failures of a round are counted;
    MOST_FAILED of them end it with a warning. *on_news* is called when the verdict names other
    ranks.
    """

    def __init__(
        self,
        group: GroupToJoin,
        on_news: Callable[[], None],
        now: Callable[[], float],
        told: dict[str, float],
    ) -> None:
        self._on_news = on_news
        self._now = now
        self._stop = threading.Event()
        self._beat = now()
        self._random = random.Random()  # The global one is the user's.
        self._has_failed = False
        self.rounds: Rounds | None = None
        self.told = told
        self.thread = threading.Thread(
            target=never_raise(self._run), args=(group,), name="rank_probe_join", daemon=True
        )
        self.thread.start()

    def end(self) -> None:
        """Stop soon, and delete this rank's keys from the store."""
        self._stop.set()

    def tell(self, figures: dict[str, float]) -> None:
        """Post *figures* for the peers."""
        self.told = figures
        if (rounds := self.rounds) is not None:
            rounds.figures.tell(figures)

    def is_stuck(self) -> bool:
        """Whether the store has failed, or has not answered for long."""
        return self._has_failed or self._now() - self._beat > STUCK_SECONDS

    def _run(self, group: GroupToJoin) -> None:
        kept = group.steps.keep()
        try:
            store = group.connect()
            if not group.steps_before:
                kept.take()  # The first round should have one period's steps.
            rounds = Rounds(
                store,
                group.place,
                kept,
                group.who,
                self._stop,
                steps_before=group.steps_before,
                work=group.work,
                facts=group.facts,
            )
            self._take_rounds(rounds, group.place)
        except RuntimeError as error:
            log.info("rank_probe stops joining steps: %s", error)
        finally:
            group.steps.forget(kept)
            if not self._stop.is_set():
                self._has_failed = True

    def _take_rounds(self, rounds: Rounds, place: PlaceInJob) -> None:
        rounds.enter()  # The keys of a killed attempt may still be there.
        self._beat = self._now()
        self.rounds = rounds
        if self.told:
            rounds.figures.tell(self.told)
        failed = 0
        while not self._stop.wait(place.period_seconds * self._random.uniform(*JITTER)):
            try:
                failed = 0 if self._take_round(rounds) else failed
            except RuntimeError:  # The store's.
                raise
            except Exception:  # noqa: BLE001 - one round must not cost all later ones
                failures.note("Rounds.run")
                failed += 1
                if failed == MOST_FAILED:
                    log.warning("rank_probe stops comparing ranks: %d rounds failed", failed)
                    break
            self._beat = self._now()
        rounds.take_back()

    def _take_round(self, rounds: Rounds) -> bool:
        """Run a round; return whether the judge spoke, since a new one may fail until it has."""
        before = rounds.verdict
        rounds.run(self._now())
        if _named(rounds.verdict) != _named(before):
            self._on_news()
        verdict = rounds.verdict
        return verdict is not before and verdict is not None and verdict["reason"] != WARMING_UP


class _State(NamedTuple):
    """The counters of earlier groups, and the membership in the current one, if there are any."""

    earlier: JoinResult | None = None
    joined_earlier: bool = False
    current: Membership | None = None

    @property
    def rounds(self) -> Rounds | None:
        """Return the rounds of the current group; None until its store is reached."""
        return None if self.current is None else self.current.rounds

    @property
    def has_joined(self) -> bool:
        """Whether this process has ever reached a store."""
        return self.joined_earlier or self.rounds is not None

    @property
    def result(self) -> JoinResult | None:
        """Return the counters since this process first joined a group."""
        rounds = self.rounds
        return added(self.earlier, None if rounds is None else rounds.result)


class Join:
    """This rank's part in the join: in one process group after another, each from its step 1 on.

    Where the store fails, counters stand still, the coverage is 0 and there is no verdict, until
    the group is formed anew. *on_news* is called when the verdict names other ranks.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        on_news: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_news = on_news
        self._now = now
        self.is_off = environment.get("RANK_PROBE_JOIN") == "0"
        self._has_given_up = False
        self._state = _State()  # Replaced as a whole: other threads read it.
        self._ended: list[Membership] = []
        self._told: dict[str, float] = {}
        self.obstacle = ""  # why the group cannot be joined, one of wire.no_join

    def begin(self, group: GroupToJoin) -> None:
        """Start to join the steps of *group*, unless it is joined; for the training thread."""
        if self.is_off or self._has_given_up or self._state.current is not None:
            return
        current = Membership(group, self._on_news, self._now, self._told)
        self._state = self._state._replace(current=current)

    def group_is_gone(self) -> None:
        """Leave the group without waiting; its results are reported until there is another one."""
        if (current := self._state.current) is not None:
            current.end()

    def group_is_new(self) -> None:
        """Forget the verdict on the group before; another one may be joined."""
        self.group_is_gone()
        state, self._has_given_up, self.obstacle = self._state, False, ""
        self._state = _State(state.result, state.has_joined)
        self._ended = [each for each in self._ended if each.thread.is_alive()]
        if state.current is not None:
            self._ended.append(state.current)

    def give_up(self) -> None:
        """Stop joining: from now on this rank's step numbers differ from its peers'."""
        self._has_given_up = True
        self.group_is_gone()

    def stop(self) -> None:
        """End, and delete this rank's keys from the store; waits a little for a slow store."""
        self.group_is_gone()
        current = self._state.current
        until = time.monotonic() + STOP_SECONDS
        for each in [*self._ended, *([current] if current else [])]:
            each.thread.join(max(until - time.monotonic(), 0.0))

    def tell(self, figures: object) -> None:
        """Post this rank's *figures*, as its exporter sent them; None means nothing new."""
        if figures is None or not (told := known_figures(figures)):
            return
        self._told = told
        if (current := self._state.current) is not None:
            current.tell(told)

    def snapshot_fields(self, stages: Iterable[str]) -> dict[str, Any]:
        """Return the join's fields of a Snapshot; empty if no join has begun.

        *stages* are those that occurred on this rank. Each has its counters from the first step on;
        otherwise their first increase would be lost.
        """
        state = self._state
        current, rounds = state.current, state.rounds
        obstacle = {"no_join": self.obstacle} if self.obstacle else {}
        if current is None or rounds is None:
            return obstacle | (counters(state.earlier, stages) if state.has_joined else {})
        own = counters(state.result, stages)
        if self._has_given_up or current.is_stuck():
            return {**own, "join_coverage": 0.0}
        return {
            **own,
            "join_coverage": rounds.coverage.ratio,
            "verdict": rounds.verdict,
            "verdict_age_seconds": (
                None if rounds.verdict is None else self._now() - rounds.verdict_at
            ),
            "peer_figures": rounds.figures.peers,
        }

    @property
    def verdict(self) -> dict[str, Any] | None:
        """Return the last verdict, in the format of judge.verdict; None without a join."""
        current = self._state.current
        if current is None or current.rounds is None:
            return None
        return None if self._has_given_up or current.is_stuck() else current.rounds.verdict

    @property
    def speaks(self) -> bool:
        """Whether its verdict rests on enough of the steps."""
        rounds = self._state.rounds
        if self.verdict is None or rounds is None:
            return False
        return (rounds.coverage.ratio or 0.0) >= ENOUGH_COVERAGE


def _named(verdict: Mapping[str, Any] | None) -> list[tuple[int, str]]:
    return [] if verdict is None else [(each["rank"], each["kind"]) for each in verdict["late"]]
