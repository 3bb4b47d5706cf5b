"""One look at a worker of a loader, from outside: its clocks, and what its main thread waits for.

Nothing is stopped or traced. Without CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, the kernel hides what
other users' threads wait for. A blocked worker then seems idle; only running, waiting for a CPU and
uninterruptible waits for a disk are reported.
"""

import os
import time
from collections import Counter, deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from exporter.processes.rank_cost import NANOSECONDS, TICKS_PER_SECOND
from exporter.processes.usage import Usage, stat
from rank_probe.lines.system_calls import (
    BLOCKED,
    CPU_QUEUE,
    DISK,
    LOCK,
    PIPE,
    RUNNING,
    SHARED,
    SLEEP,
    SOCKET,
    Reader,
    Wait,
    wait_of_channel,
)
from rank_probe.process.small_files import beginning

# Fewer looks say nothing.
LEAST_LOOKS: Final = 8
MOST_LOOKS: Final = 60
# Smaller shares are not reported.
LEAST_SHARE: Final = 0.05
# An unknown pipe may be new, so the rank's pipes are listed again, but not at each look.
SECONDS_BEFORE_LISTED_AGAIN: Final = 5.0
# A process may have a million open, far more than any rank.
MOST_DESCRIPTORS: Final = 4096
# States that the name of the kernel function identifies reliably enough.
SURE_BY_CHANNEL: Final = (DISK, SLEEP, SOCKET)
UNKNOWN: Final = Wait(BLOCKED, link=SHARED)


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """A worker at one moment, in seconds; CPU times since it started.

    *cpu* and *queue* are those of its main thread, *process_cpu* has its other threads too. *wait*
    is what the main thread is blocked in, None if it runs. *is_idle*: it waits for work, or what it
    waits for is hidden.
    """

    at: float
    cpu: float
    queue: float
    process_cpu: float
    wait: Wait | None = None
    is_idle: bool = False


class WorkerWindow:
    """The last MOST_LOOKS looks at one worker.

    The clocks say for how long it ran and waited for a CPU; the looks, at random moments, say how
    the rest is divided.
    """

    def __init__(self) -> None:
        self._looks: deque[WorkerLook] = deque(maxlen=MOST_LOOKS)

    def add(self, look: WorkerLook) -> None:
        """Count *look*, and forget the oldest if there are too many."""
        self._looks.append(look)

    def shares(self) -> dict[Wait, float]:
        """Return the share of its time in each state, largest first; the rest to 1 was idle.

        Empty after fewer than LEAST_LOOKS looks.
        """
        if len(self._looks) < LEAST_LOOKS:
            return {}
        first, last = self._looks[0], self._looks[-1]
        elapsed = last.at - first.at
        running = min(max(last.cpu - first.cpu, 0.0), elapsed)
        queue = min(max(last.queue - first.queue, 0.0), elapsed - running)
        waits = self._waits(elapsed - running - queue)
        others = max(last.process_cpu - first.process_cpu - running, 0.0)
        running += _done_by_others(waits, others)
        found = {Wait(RUNNING): running, Wait(CPU_QUEUE): queue, **waits}
        told = {what: each / elapsed for what, each in found.items()}
        return {
            what: min(share, 1.0)
            for what, share in sorted(told.items(), key=lambda each: -each[1])
            if share >= LEAST_SHARE
        }

    def _waits(self, seconds: float) -> dict[Wait, float]:
        """Divide *seconds*; a wait is told apart by state and mount, not by its link."""
        blocked = [each for each in self._looks if each.wait is not None or each.is_idle]
        counted = Counter(
            Wait(each.wait.state, each.wait.mount)
            for each in blocked
            if each.wait is not None and not each.is_idle
        )
        return {wait: seconds * count / len(blocked) for wait, count in counted.items()}


def _done_by_others(waits: dict[Wait, float], others: float) -> float:
    """Take from *waits* the time that other threads of the worker computed; return how much.

    The main thread waits on a lock while a decoder computes in threads of its own.
    """
    taken = 0.0
    for wait in [each for each in waits if each.state in (LOCK, BLOCKED)]:
        part = min(waits[wait], others - taken)
        waits[wait] -= part
        taken += part
    return taken


class Pipes:
    """The pipes that the rank *pid* has open, as links; idle workers wait at one of them."""

    def __init__(self, procfs: Path, pid: int) -> None:
        self._folder = f"{procfs}/{pid}/fd"
        self._known: frozenset[str] = frozenset()
        self._listed_seconds = float("-inf")

    def has(self, link: str, now: float) -> bool:
        """Whether the rank has the pipe *link*."""
        if link not in self._known and now - self._listed_seconds > SECONDS_BEFORE_LISTED_AGAIN:
            self._listed_seconds = now
            self._known = frozenset(self._links())
        return link in self._known

    def _links(self) -> list[str]:
        found = []
        try:
            with os.scandir(self._folder) as descriptors:
                for each in islice(descriptors, MOST_DESCRIPTORS):
                    found.append(os.readlink(each.path))
        except OSError:  # One was closed meanwhile, or the rank has ended.
            self._listed_seconds = float("-inf")
        return [each for each in found if each.startswith("pipe:")]


class WatchedWorker:
    """The worker *pid* of a rank that has *pipes*."""

    def __init__(self, procfs: Path, pid: int, pipes: Pipes) -> None:
        self.pid = pid
        self.window = WorkerWindow()
        self._procfs = procfs
        self._folder = f"{procfs}/{pid}"
        self._pipes = pipes
        self._reader = Reader(self._folder)
        self._start_ticks: int | None = None

    def look(self) -> bool:
        """Look at it; False if it has ended."""
        call = beginning(f"{self._folder}/syscall") or b""
        found = stat(self._procfs, self.pid)
        if found is None or found.is_zombie or found.start_ticks != self._started(found):
            return False
        clocks = (beginning(f"{self._folder}/schedstat") or b"").split()
        if len(clocks) != 3:
            return True  # This kernel does not count.
        now = time.monotonic()
        wait = self._wait(call, found)
        idle = wait is not None and self._is_idle(wait, now)
        cpu, queue = (int(each) / NANOSECONDS for each in clocks[:2])
        ticks = found.own.cpu_ticks / TICKS_PER_SECOND
        self.window.add(WorkerLook(now, cpu, queue, ticks, wait, idle))
        return True

    def _started(self, found: Usage) -> int:
        self._start_ticks = self._start_ticks or found.start_ticks
        return self._start_ticks

    def _wait(self, call: bytes, found: Usage) -> Wait | None:
        is_in_disk_sleep = found.state == b"D"
        if call:
            return self._reader.wait(call, lambda: is_in_disk_sleep)
        channel = (beginning(f"{self._folder}/wchan") or b"").decode(errors="replace")
        wait = wait_of_channel(channel, is_in_disk_sleep=is_in_disk_sleep)
        if wait is not None and wait.state in SURE_BY_CHANNEL:
            return wait
        # Which pipe or lock it waits for is not known, so neither is whether it waits for work.
        return None if found.state == b"R" else UNKNOWN

    def _is_idle(self, wait: Wait, now: float) -> bool:
        return wait.link == SHARED or (wait.state == PIPE and self._pipes.has(wait.link, now))
