"""The latest snapshot of every rank on this node, and which ranks are still worth showing."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final

from exporter.listeners.peer import Peer
from exporter.ranks.limits import Beginnings, RankLimits, RankSlot, reached, sharer
from rank_probe.wire.snapshot import Snapshot

# Ten missed pushes: such a process is silent, and a newer process may replace it.
SILENT_SECONDS: Final = 10.0

RankKey = tuple[str, int]


class Superseded(Exception):
    """The snapshot comes from a process that a newer one has already replaced."""


class Forbidden(Exception):
    """The rank, or its job, belongs to another user or container that still reports it."""


@dataclass(frozen=True, slots=True)
class HeldRank:
    """A rank's latest snapshot and when it arrived, in seconds of the store's clock.

    *owner* is None if it came over TCP, where the user is unknown; *owned_seconds* is when that
    owner first reported the rank. *began_seconds* is when its process started the probe, according
    to its first snapshot here, *formed_seconds* when its group was formed anew, if it was.
    """

    snapshot: Snapshot
    received_seconds: float
    owner: Peer | None = None
    began_seconds: float = 0.0
    owned_seconds: float = 0.0
    formed_seconds: float = -math.inf

    @property
    def key(self) -> RankKey:
        """Return what names the rank on this node: its job and its number there."""
        return self.snapshot.job_id, self.snapshot.rank

    def is_silent(self, now: float) -> bool:
        """Whether it has stopped pushing without a clean end."""
        return not self.snapshot.finished and now - self.received_seconds >= SILENT_SECONDS

    def is_beating(self, now: float) -> bool:
        """Say whether it runs and pushes."""
        return not self.snapshot.finished and not self.is_silent(now)


class RankStore:
    """Holds one snapshot per (job_id, rank); nothing here survives a restart or needs to.

    A job on this node belongs to the user who first reported a rank of it, until its ranks have
    ended: finished, or silent for *finished_retention_seconds*. Nobody else can add ranks to it, or
    report for one that is stuck. Within one user, a rank belongs to the container that reported it,
    until it finishes, or is silent and its process is gone: a restarted pod is a new container. A
    process in the batch job of that name takes precedence over all others. Anyone may report a
    rank without an owner.

    Ranks of an earlier run of the job (before a restart with fewer ranks, or on other nodes), and
    of an earlier process group, are dropped once the later one reports: a dead copy of a rank is
    neither silent nor missing. A process may have a different rank in each group.

    *clock* measures silence and retention. The default is monotonic, so a jump of the wall clock
    neither drops a rank nor keeps one forever.

    Not thread-safe on purpose: ingest, scrape and live page all run in the event loop, so
    there is no lock that a scrape could wait on.
    """

    def __init__(
        self, limits: RankLimits | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self._limits = limits or RankLimits()
        self._clock = clock or time.monotonic
        self._held: dict[RankKey, HeldRank] = {}
        self._beginnings = Beginnings(self._limits.ranks)

    @property
    def limits(self) -> RankLimits:
        """Return the node's limits; ranks that are found without a push count towards them."""
        return self._limits

    def put(self, snapshot: Snapshot, owner: Peer | None = None) -> bool:
        """Keep *snapshot* of *owner*; False if it is not newer than the one held (harmless).

        Raises Forbidden for a rank of another user, Superseded for an older process of the same
        rank, NoRoom at a limit.
        """
        self._forget_expired()
        key = (snapshot.job_id, snapshot.rank)
        self._evict_impostors(snapshot.job_id, owner)
        held = self._held.get(key)
        if held is None or held.owner != owner:
            self._check_owner(snapshot, owner)
        elif not self._is_newer(snapshot, held):
            return False
        now = self._clock()
        if held is None:
            self._beginnings.check(sharer(owner), now)
        if held is None or held.snapshot.peer_group != snapshot.peer_group or held.owner != owner:
            self._make_room(snapshot, owner)
        if held is None:
            self._beginnings.add(sharer(owner), now)
        if held is not None and _incarnation(held.snapshot) == _incarnation(snapshot):
            # Set once: a later jump of the wall clock changes nothing.
            began, formed = held.began_seconds, held.formed_seconds
        else:
            began = now - _age_seconds(snapshot, snapshot.started_timestamp_seconds)
            group = snapshot.group_formed_timestamp_seconds
            formed = -math.inf if group is None else now - _age_seconds(snapshot, group)
        owned = held.owned_seconds if held is not None and held.owner == owner else now
        self._held[key] = HeldRank(snapshot, now, owner, began, owned, formed)
        return True

    def would_put(self, snapshot: Snapshot, owner: Peer | None = None) -> bool:
        """Return, or raise, what put() would; nothing changes."""
        trial = copy(self)
        trial._held = self._held.copy()
        trial._beginnings = self._beginnings.only_of(sharer(owner))
        return trial.put(snapshot, owner)

    def now(self) -> float:
        """Return the store's time, on the clock of *received_seconds* and *began_seconds*."""
        return self._clock()

    def ranks(self) -> list[HeldRank]:
        """Return the held ranks, by job and rank."""
        self._forget_expired()
        return [self._held[key] for key in sorted(self._held)]

    def _evict_impostors(self, job_id: str, owner: Peer | None) -> None:
        """Drop what others report as *job_id* if *owner* is in the batch job of that number.

        Numbers can be guessed and claimed in advance; the cgroup cannot.
        """
        if owner is not None and owner.container == job_id:
            for key, held in list(self._held.items()):
                if key[0] == job_id and held.owner is not None and held.owner.container != job_id:
                    del self._held[key]

    def _check_owner(self, snapshot: Snapshot, owner: Peer | None) -> None:
        """Raise Forbidden if the rank, or the job, is somebody else's."""
        for (job_id, rank), held in self._held.items():
            if job_id != snapshot.job_id or held.owner in (None, owner):
                continue
            if held.owner is not None and owner is not None and held.owner.uid == owner.uid:
                is_gone = self._is_gone(held) and not held.owner.is_running()
                is_free = rank != snapshot.rank or is_gone or self._has_ended(held)
            else:
                is_free = self._has_ended(held)
            # Processes of two owners are two jobs, so it does not matter which of them is newer.
            if not is_free:
                raise Forbidden(
                    f"Rank {rank} of job {job_id!r} belongs to another user or container "
                    f"on this node (uid {held.owner.uid if held.owner else 'unknown'}); "
                    "set RANKSKEW_JOB_ID to a unique name."
                )

    def _is_newer(self, snapshot: Snapshot, held: HeldRank) -> bool:
        ours, theirs = _incarnation(snapshot), _incarnation(held.snapshot)
        if ours == theirs:
            return snapshot.sequence > held.snapshot.sequence
        if ours > theirs or self._may_take_over(snapshot, held):
            return True
        if snapshot.finished:
            return False  # It gives up a number that another process already has.
        raise Superseded(
            f"A newer process already reports rank {snapshot.rank} of job {snapshot.job_id!r}; "
            "stop this one, or give each run its own RANKSKEW_JOB_ID."
        )

    def _may_take_over(self, snapshot: Snapshot, held: HeldRank) -> bool:
        # A requeued job keeps its id and counts its attempts from 0 again; it must not be
        # locked out by what the run before left behind.
        started_later = snapshot.started_timestamp_seconds > held.snapshot.started_timestamp_seconds
        return started_later and self._is_gone(held)

    def _is_gone(self, held: HeldRank) -> bool:
        return not held.is_beating(self._clock())

    def _make_room(self, snapshot: Snapshot, owner: Peer | None) -> None:
        """Drop ranks until *snapshot* fits: first ended ones, the longest unheard first.

        Then the owner with the most loses what started last: a rank, or a whole job.
        """
        mine = RankSlot(sharer(owner), snapshot.job_id, snapshot.peer_group, snapshot.rank)
        while (limit := reached(self._limits, {mine, *self._places(snapshot)})) is not None:
            ended = [key for key, held in self._held.items() if self._has_ended(held)]
            if ended:
                del self._held[min(ended, key=lambda key: self._held[key].received_seconds)]
                continue
            crowd = limit.crowd(mine.owner)
            theirs = [key for key, held in self._held.items() if sharer(held.owner) == crowd]
            last = max(theirs, key=lambda key: (self._held[key].began_seconds, key))
            for key in theirs:
                if key == last or (limit.is_of_jobs and key[0] == last[0]):
                    del self._held[key]

    def _places(self, snapshot: Snapshot) -> Iterator[RankSlot]:
        """Yield the slots of all ranks except that of *snapshot*."""
        for (job_id, rank), held in self._held.items():
            if (job_id, rank) != (snapshot.job_id, snapshot.rank):
                yield RankSlot(sharer(held.owner), job_id, held.snapshot.peer_group, rank)

    def _has_ended(self, held: HeldRank) -> bool:
        silent_seconds = self._silent_seconds(held)
        return held.snapshot.finished or silent_seconds > self._limits.finished_retention_seconds

    def _forget_expired(self) -> None:
        for key in [key for key, held in self._held.items() if self._has_expired(held)]:
            del self._held[key]
        for key in _dead_copies(self._held, self._clock()):
            del self._held[key]

    def _has_expired(self, held: HeldRank) -> bool:
        retention_seconds = (
            self._limits.finished_retention_seconds
            if held.snapshot.finished
            else self._limits.silent_retention_seconds
        )
        return self._silent_seconds(held) > retention_seconds

    def _silent_seconds(self, held: HeldRank) -> float:
        return self._clock() - held.received_seconds


def _dead_copies(held: Mapping[RankKey, HeldRank], now: float) -> list[RankKey]:
    """Return the ranks that ended or became silent in a run before the one that reports now.

    A run belongs to one owner, so nobody can make the ranks of another disappear.
    """
    beating: dict[tuple[str, Peer | None], list[HeldRank]] = {}
    gone: list[tuple[RankKey, HeldRank]] = []
    for key, rank in held.items():
        if rank.is_beating(now):
            beating.setdefault((rank.snapshot.job_id, rank.owner), []).append(rank)
        else:
            gone.append((key, rank))
    return [
        key
        for key, rank in gone
        if _is_of_an_earlier_run(rank, beating.get((rank.snapshot.job_id, rank.owner), []))
    ]


def _is_of_an_earlier_run(gone: HeldRank, beating: Sequence[HeldRank]) -> bool:
    if not beating:
        return False
    if any(gone.received_seconds < each.formed_seconds for each in beating):
        return True
    newest = max(beating, key=lambda rank: rank.began_seconds).snapshot
    return (
        gone.snapshot.rank >= newest.world_size
        or gone.snapshot.attempt < newest.attempt
        # A requeued job restarts its attempt count, but no rank that reports now existed then.
        or gone.received_seconds < min(rank.began_seconds for rank in beating)
    )


def _age_seconds(snapshot: Snapshot, since: float) -> float:
    """Return how long ago *since* was by the rank's own clock; only differences are meaningful."""
    return max(0.0, snapshot.heartbeat_timestamp_seconds - since)


def _incarnation(snapshot: Snapshot) -> tuple[int, float]:
    """Return a key that orders the successive processes of one rank.

    When a group is formed anew, a spare may be older than the process that it replaces.
    """
    formed = snapshot.group_formed_timestamp_seconds or 0.0
    return snapshot.attempt, max(snapshot.started_timestamp_seconds, formed)
