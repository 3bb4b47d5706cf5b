"""How many ranks, jobs and peer groups a node holds, and how many of them each owner may have."""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Final, NamedTuple

from exporter.listeners.peer import Peer

MINUTE_SECONDS: Final = 60.0
# A job that restarts every few seconds starts all its ranks each time.
BEGINNINGS_A_MINUTE: Final = 4
# Whoever makes up more owners within a minute is not held back by forgetting the first of them.
MOST_OWNERS: Final = 1024

Owner = Peer | None


def sharer(owner: Owner) -> Owner:
    """Return who has a share of the node: *owner*'s user, or pod or container."""
    return None if owner is None else owner.sharer


class NoRoom(Exception):
    """The node already holds as many ranks, jobs or peer groups as it may."""


@dataclass(frozen=True, slots=True)
class RankLimits:
    """How much one node holds, and for how long; each is a flag of `rankskew exporter`."""

    ranks: int = 64
    jobs: int = 16
    peer_groups: int = 32
    finished_retention_seconds: float = 300.0
    silent_retention_seconds: float = 3600.0


class RankSlot(NamedTuple):
    """What one rank takes up; *owner* is a `sharer`."""

    owner: Owner
    job_id: str
    peer_group: str
    rank: int


class Reached(NamedTuple):
    """A limit that is reached: *held* has each owner's count, the new rank included."""

    most: int
    held: Counter[Owner]
    is_of_jobs: bool
    sentence: str

    def crowd(self, owner: Owner) -> Owner:
        """Return the owner that must make room for *owner*; raises NoRoom if there is none.

        An owner may use the whole node while no other needs it, and otherwise an equal share.
        """
        share = max(1, self.most // len(self.held))
        crowd, most = self.held.most_common(1)[0]
        if crowd == owner or self.held[owner] > share or most <= share:
            raise NoRoom(self.sentence)
        return crowd


def reached(limits: RankLimits, places: Iterable[RankSlot]) -> Reached | None:
    """Return the first limit that *places* exceed; None where all have room."""
    all_of_them = set(places)
    for units, most, what, flag in (
        ({(p.owner, p.job_id, p.rank) for p in all_of_them}, limits.ranks, "ranks", "--ranks.max"),
        ({(p.owner, p.job_id) for p in all_of_them}, limits.jobs, "jobs", "--ranks.jobs-max"),
        (
            {(p.owner, p.job_id, p.peer_group) for p in all_of_them},
            limits.peer_groups,
            "peer groups",
            "--ranks.peer-groups-max",
        ),
    ):
        if len(units) > most:
            sentence = (
                f"This node already has {most} {what}; "
                f"stop those that are no longer needed, or raise {flag}."
            )
            return Reached(most, Counter(unit[0] for unit in units), what == "jobs", sentence)
    return None


class Beginnings:
    """Limits how many ranks of one owner start in a minute, since each creates new series."""

    def __init__(self, ranks: int) -> None:
        self._most = BEGINNINGS_A_MINUTE * ranks
        # In the order of each owner's last start, the oldest first.
        self._times: OrderedDict[Owner, deque[float]] = OrderedDict()

    def check(self, owner: Owner, now: float) -> None:
        """Raise NoRoom if one more of *owner* would be too many."""
        times = self._times.get(owner)
        if times and len(times) == self._most and times[0] > now - MINUTE_SECONDS:
            raise NoRoom(
                f"{self._most} ranks of this user started in the last minute; "
                "wait, or raise --ranks.max."
            )

    def only_of(self, owner: Owner) -> "Beginnings":
        """Return an independent copy that has the starts of *owner* only."""
        other = copy(self)
        other._times = OrderedDict()
        if owner in self._times:
            other._times[owner] = self._times[owner].copy()
        return other

    def add(self, owner: Owner, now: float) -> None:
        """Count one more."""
        self._times.setdefault(owner, deque(maxlen=self._most)).append(now)
        self._times.move_to_end(owner)
        while len(self._times) > MOST_OWNERS or self._first_seconds() <= now - MINUTE_SECONDS:
            self._times.popitem(last=False)

    def _first_seconds(self) -> float:
        """Return when the first owner last began one."""
        return next(iter(self._times.values()))[-1]
