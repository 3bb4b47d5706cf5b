"""The latest looks at one worker of a loader: in what it spends its time."""

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

from rank_probe.lines.system_calls import BLOCKED, CPU_QUEUE, LOCK, RUNNING, Wait

# Fewer looks say nothing.
LEAST_LOOKS: Final = 8
MOST_LOOKS: Final = 60
# Smaller shares are not told.
LEAST_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """A worker at one moment, in seconds; CPU times since it started.

    *cpu* and *queue* are those of its main thread, *process_cpu* has its other threads too. *wait*
    is what the main thread is blocked in, None if it runs; *is_idle*: it waits for work, or nobody
    may know for what.
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
        """Return in what it spent its time, largest first; what is missing to 1 was idle.

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
    """Take from *waits* what other threads of the worker computed meanwhile; return how much.

    A decoder with threads of its own keeps the main thread waiting for them, by a lock.
    """
    taken = 0.0
    for wait in [each for each in waits if each.state in (LOCK, BLOCKED)]:
        part = min(waits[wait], others - taken)
        waits[wait] -= part
        taken += part
    return taken
