"""What the loader's workers of a late rank do: several looks a second, from outside."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporter.causes.model import ThreadState
from exporter.errors import Failures
from exporter.processes.background import BackgroundWatch
from exporter.processes.children import Children, family
from exporter.processes.worker_look import Pipes, WatchedWorker
from rank_probe.lines.system_calls import CPU_QUEUE, DISK, Wait
from rank_probe.process.small_files import beginning
from rank_probe.wire.stages import DATA, STAGES

# At first, so that there is an answer within a second, with that of the main thread.
FIRST_INTERVAL_SECONDS: Final = 0.1
FIRST_LOOKS: Final = 50
INTERVAL_SECONDS: Final = 1.0
# Large, or the looks would hit the same moments of batches that all take equally long.
JITTER: Final = 0.5
# A loader without persistent workers starts new ones in each epoch.
LOOKS_BEFORE_LISTED_AGAIN: Final = 5
# At most for one rank; each rank's minimum when all share the total; that total. 75 µs each.
MOST_WORKERS, FEWEST_WORKERS, MOST_OF_ALL = 64, 4, 256
# What torch calls the main thread of a worker, from 2.5 on.
WORKER_NAME: Final = b"pt_data_worker"
# In the command line of a process that multiprocessing started as a program of its own.
SPAWNED: Final = (b"--multiprocessing-fork", b"multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class LateRankProcess:
    """A late rank, with its process as this exporter sees it, and what its loader's workers run."""

    job_id: str
    rank: int
    pid: int
    loader: str = ""


class WorkerStates(BackgroundWatch):
    """Looks at the workers of the ranks last passed to follow(), in a thread of its own.

    It reads /proc between start() and stop(), and nothing while no rank is followed. *follow* and
    *of* may be called from any thread.
    """

    def __init__(self, procfs: Path, failures: Failures | None = None) -> None:
        super().__init__("rankskew-worker-states", failures=failures)
        self._procfs = procfs
        self._children = Children(procfs)
        self._random = random.Random()
        # Both are replaced as a whole, so that another thread never sees a partial result.
        self._followed: Sequence[LateRankProcess] = ()
        self._busiest: Mapping[tuple[str, int], tuple[int | None, Sequence[ThreadState]]] = {}
        self._ranks: dict[tuple[str, int, int], _Rank] = {}

    def follow(self, ranks: Sequence[LateRankProcess]) -> None:
        """Look at the workers of these ranks from now on, and forget those of others."""
        begins_or_ends = bool(ranks) != bool(self._followed)
        self._followed = ranks
        if begins_or_ends:
            self._changed.set()

    def of(self, job_id: str, rank: int) -> Sequence[ThreadState]:
        """Return the states of the busiest worker of a followed rank, all with stage `data`.

        The largest share comes first; the rest to 1 is time in which it waited for work. Empty
        without workers, and in the first seconds.
        """
        return self._of(job_id, rank)[1]

    def pid(self, job_id: str, rank: int) -> int | None:
        """Return the process id of the busiest worker, as this exporter sees it."""
        return self._of(job_id, rank)[0]

    def _of(self, job_id: str, rank: int) -> tuple[int | None, Sequence[ThreadState]]:
        found = self._busiest if self._failed() is None else {}
        return found.get((job_id, rank), (None, ()))

    def look(self) -> None:
        """Look now."""
        followed = self._followed
        keys = {(each.job_id, each.rank, each.pid): each for each in followed}
        self._ranks = {
            key: self._ranks.get(key) or _Rank(self._procfs, each.pid) for key, each in keys.items()
        }
        listed: list[Mapping[int, Sequence[int]]] = []  # At most once a look, for all ranks.

        def children() -> Mapping[int, Sequence[int]]:
            if not listed:
                listed.append(self._children.look())
            return listed[0]

        most = min(MOST_WORKERS, max(FEWEST_WORKERS, MOST_OF_ALL // max(len(self._ranks), 1)))
        for rank in self._ranks.values():
            rank.look(children, most)
        self._busiest = {
            (each.job_id, each.rank): self._ranks[key].busiest(each.loader)
            for key, each in keys.items()
        }

    def _pause(self) -> float | None:
        if not self._followed:
            return None
        is_first = any(rank.looks < FIRST_LOOKS for rank in self._ranks.values())
        seconds = FIRST_INTERVAL_SECONDS if is_first else INTERVAL_SECONDS
        return seconds * self._random.uniform(1 - JITTER, 1 + JITTER)


class _Rank:
    """The workers of the rank *pid*."""

    def __init__(self, procfs: Path, pid: int) -> None:
        self._procfs = procfs
        self._pid = pid
        self._pipes = Pipes(procfs, pid)
        self._workers: dict[int, WatchedWorker] = {}
        self.looks = 0

    def look(self, children: Callable[[], Mapping[int, Sequence[int]]], most: int) -> None:
        """Look at each of them, at *most* so many."""
        if self.looks % LOOKS_BEFORE_LISTED_AGAIN == 0:
            self._list(children(), most)
        self.looks += 1
        self._workers = {pid: each for pid, each in self._workers.items() if each.look()}

    def busiest(self, loader: str) -> tuple[int | None, Sequence[ThreadState]]:
        """Return the worker that is busiest, and its states; *loader* is what it runs.

        The loop takes batches from all workers in turn, so that it waits for the slowest one.
        """
        shares = {pid: each.window.shares() for pid, each in self._workers.items()}
        pid = max(shares, key=lambda pid: sum(shares[pid].values()), default=None)
        if pid is None or not shares[pid]:
            return None, ()
        return pid, [
            ThreadState(STAGES[DATA], what.state, share, _place(what, loader))
            for what, share in shares[pid].items()
        ]

    def _list(self, children: Mapping[int, Sequence[int]], most: int) -> None:
        descendants = [pid for pid in family(self._pid, children, frozenset()) if pid != self._pid]
        found = loader_workers(self._procfs, self._pid, descendants)[:most]
        self._workers = {
            pid: self._workers.get(pid) or WatchedWorker(self._procfs, pid, self._pipes)
            for pid in found
        }


def _place(what: Wait, loader: str) -> str:
    if what.state == DISK:
        return what.mount
    return "" if what.state == CPU_QUEUE else loader


def loader_workers(procfs: Path, pid: int, descendants: Iterable[int]) -> list[int]:
    """Return those *descendants* of the rank *pid* that are workers of a loader.

    They have a name of their own. With an older torch, they run the same program as the rank: a
    fork keeps the command line. A logger's helper or a decoder is another program.
    """
    pids = list(descendants)
    named = [
        each for each in pids if (beginning(f"{procfs}/{each}/comm") or b"").strip() == WORKER_NAME
    ]
    if named:
        return named
    own = beginning(f"{procfs}/{pid}/cmdline")
    lines = {each: beginning(f"{procfs}/{each}/cmdline") for each in pids}
    return [
        each
        for each, line in lines.items()
        if line and (line == own or any(word in line for word in SPAWNED))
    ]
