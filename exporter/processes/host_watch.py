"""What the node's ranks cost their host, looked up in /proc in the background."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from exporter.errors import Failures
from exporter.processes.background import BackgroundWatch
from exporter.processes.cgroup_cost import CgroupCost, CgroupCosts
from exporter.processes.children import Children, family
from exporter.processes.process import Proc, Process
from exporter.processes.rank_cost import Cost, RankCost
from exporter.processes.rank_gpus import RankOnGpu, is_reporter
from exporter.ranks.store import HeldRank

# Eight ranks with eight workers each take 5 ms, 0.1 % of a core.
INTERVAL_SECONDS: Final = 5.0
# While a rank is late, so that the first page has figures of its lateness.
HURRIED_SECONDS: Final = 1.5
STALE_SECONDS: Final = 60.0
# At 50 µs each, a user with thousands of processes takes a twentieth of a second at most.
MOST_PROCESSES: Final = 1024

# job_id, peer_group and rank.
Who = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Followed:
    """A rank to look at: its *process* if it is known from its GPU, else the one that reports."""

    who: Who
    process: Process | None = None
    held: HeldRank | None = None


@dataclass(frozen=True, slots=True)
class HostCost:
    """What a rank's processes have used, and how its cgroup was held back; *pid* is its own."""

    used: Cost
    cgroup: CgroupCost
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the time *seconds* found, by the watch's clock.

    *left_out* processes of ranks were not read, because of the limit.
    """

    costs: Mapping[Who, HostCost]
    left_out: int
    seconds: float = 0.0


def to_follow(joined: Iterable[RankOnGpu], held: Iterable[HeldRank]) -> list[Followed]:
    """Return the node's ranks that may have a living process, each once."""
    found: dict[tuple[str, int], Followed] = {}
    for each in held:
        snapshot = each.snapshot
        if not snapshot.finished:
            who = (snapshot.job_id, snapshot.peer_group, str(snapshot.rank))
            found[snapshot.job_id, snapshot.rank] = Followed(who, held=each)
    for rank in joined:
        if rank.process is not None:
            who = (rank.job_id, rank.peer_group, str(rank.rank))
            found[rank.job_id, rank.rank] = Followed(who, rank.process)
    return list(found.values())


class HostWatch(BackgroundWatch):
    """Looks at the ranks last passed to follow(), in a thread between start() and stop().

    A rank's counters begin with its process, so a restarted rank begins again. While no rank is
    followed, nothing is read.
    """

    def __init__(
        self,
        procfs: Path,
        sysfs: Path,
        clock: Callable[[], float] = time.monotonic,
        failures: Failures | None = None,
    ) -> None:
        hangs = "reading the process or the cgroup of a rank hangs"
        super().__init__(
            "rankskew-host-watch", INTERVAL_SECONDS, STALE_SECONDS, hangs, clock, failures
        )
        self._procfs = procfs
        self._proc = Proc(procfs)
        self._children = Children(procfs)
        self._cgroups = CgroupCosts(procfs, sysfs)
        self._hurries = False
        self._ranks: dict[Who, RankCost] = {}
        self._reported: dict[Who, Process] = {}
        # Both are replaced as a whole, so that another thread never sees a partial result.
        self._followed: Sequence[Followed] = ()
        self._latest: Look | None = None

    def hurry(self, hurries: bool) -> None:
        """Look every HURRIED_SECONDS, or again at the usual interval."""
        begins = hurries and not self._hurries
        self._hurries = hurries
        if begins:
            self._changed.set()

    def follow(self, ranks: Sequence[Followed]) -> None:
        """Look at these ranks from now on, and at no others."""
        self._followed = ranks

    def latest(self) -> Look | None:
        """Return what the last look found, None before the first. Raises WatchHangs."""
        self._raise_if_it_hangs()
        return self._latest

    def look(self) -> None:
        """Look now."""
        processes = {each.who: self._process(each) for each in self._followed}
        found = {who: process for who, process in processes.items() if process is not None}
        self._reported = {who: each for who, each in self._reported.items() if who in found}
        self._ranks = {who: self._rank(who, process) for who, process in found.items()}
        self._latest = self._look_at(self._ranks) if found else None
        self._looked_seconds = self._clock()

    def _look_at(self, ranks: Mapping[Who, RankCost]) -> Look:
        seconds = self._clock()
        children = self._children.look()
        everyone = frozenset(rank.pid for rank in ranks.values())
        share = max(1, MOST_PROCESSES // len(ranks))
        cgroups: dict[str, CgroupCost] = {}  # Ranks often share one.
        costs: dict[Who, HostCost] = {}
        left_out = 0
        for who, rank in ranks.items():
            theirs = family(rank.pid, children, everyone - {rank.pid})
            if rank.look(theirs, share):
                path = self._cgroups.path(rank.pid)
                if path not in cgroups:
                    cgroups[path] = self._cgroups.cost(path)
                costs[who] = HostCost(replace(rank.cost), cgroups[path], rank.pid)
                left_out += rank.left_out
        return Look(costs, left_out, seconds)

    def _rank(self, who: Who, process: Process) -> RankCost:
        known = self._ranks.get(who)
        if known is not None and known.is_of(process.pid, process.start_ticks):
            return known
        return RankCost(self._procfs, process.pid, process.start_ticks)

    def _process(self, rank: Followed) -> Process | None:
        if rank.process is not None or rank.held is None:
            return rank.process
        process = self._proc.process(rank.held.snapshot.pid, self._reported.get(rank.who))
        if process is None or not is_reporter(process, rank.held):
            return None
        self._reported[rank.who] = process
        return process

    def _pause(self) -> float:
        return HURRIED_SECONDS if self._hurries else INTERVAL_SECONDS
