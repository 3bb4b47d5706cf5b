"""The line of code: samples the training thread's stack while this rank is named late.

It reads functions, files and line numbers of that one stack; no variable, argument or source. The
training thread runs nothing for it. A rank that is not late has no such thread and no sample.
"""

import random
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Final

from rank_probe.guard import never_raise
from rank_probe.loop_frames import Spot, TrainingLoop, stack_of
from rank_probe.snapshot import MOST_LATE_LINES
from rank_probe.stack_window import Sample, Window
from rank_probe.stages import STAGES, SYNC
from rank_probe.user_code import Line, UserCode, of_this_process

INTERVAL_SECONDS: Final = 0.05
# Much, or the samples would fall on the same moments of equally long steps.
JITTER: Final = 0.5


class Stacks:
    """Samples a thread, from `watch(stage)` until `watch(None)`.

    *thread* returns which one, *stage* its current stage, *backward* the codes on its stack when it
    called backward, innermost first (empty while unknown). Samples in stage `sync` are not kept: a
    rank that waits for others is not late there. When the rank is no longer late, its samples are
    forgotten: they would outlive what they explain.

    `watch` and `lines` are for one thread, the rest for any. RANK_PROBE_STACKS=0 turns it off.
    A rank that ends calls `stop`.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        thread: Callable[[], int],
        stage: Callable[[], str],
        backward: Callable[[], Sequence[CodeType]] = tuple,
    ) -> None:
        self._is_off = environment.get("RANK_PROBE_STACKS") == "0"
        self._environment = environment
        self._stage = stage
        self._backward = backward
        self._thread = thread
        self._late_stage = ""
        self._sampling: Sampling | None = None
        self._samples_before = 0

    @property
    def samples(self) -> int:
        """How many samples were taken in this process."""
        sampling = self._sampling
        return self._samples_before + (0 if sampling is None else sampling.samples)

    def watch(self, late_stage: str | None) -> None:
        """Sample while this rank is late in *late_stage*; None ends it."""
        sampling = self._sampling
        if late_stage is None:
            if sampling is not None:
                sampling.stop()
                self._samples_before += sampling.samples
                self._sampling = None
            return
        self._late_stage = late_stage
        if sampling is None and not self._is_off:
            code = of_this_process(self._environment)
            self._sampling = Sampling(self._thread, self._stage, self._backward, code)

    def stop(self) -> None:
        """End for good: a later `watch` begins nothing."""
        self._is_off = True
        if (sampling := self._sampling) is not None:
            sampling.stop()

    def lines(self) -> list[dict[str, Any]]:
        """Return a Snapshot's *late_lines*: those of the late stage first."""
        sampling = self._sampling
        return [] if sampling is None else sampling.lines(self._late_stage)

    def iterating_share(self, stage: str) -> float | None:
        """Return the share of *stage*'s samples in which the loop was fetching its next item.

        None if there are too few, so also while this rank is not late.
        """
        sampling = self._sampling
        return None if sampling is None else sampling.iterating_share(stage)


class Sampling:
    """The samples of one *thread* during one lateness, taken by a daemon thread of their own."""

    def __init__(
        self,
        thread: Callable[[], int],
        stage: Callable[[], str],
        backward: Callable[[], Sequence[CodeType]],
        code: UserCode,
    ) -> None:
        self._watched = thread
        self._stage = stage
        self._code = code
        self._loop = TrainingLoop(backward, code.has)
        self._window = Window()
        self._lock = threading.Lock()  # On the window.
        self._stop = threading.Event()
        self.samples = 0
        run = never_raise(self._run)
        threading.Thread(target=run, name="rank_probe_stacks", daemon=True).start()

    def stop(self) -> None:
        """Take no more samples; does not wait for the thread."""
        self._stop.set()

    def lines(self, late_stage: str) -> list[dict[str, Any]]:
        """Return the most frequent lines, those in *late_stage* first."""
        with self._lock:
            found = self._window.lines(late_stage, MOST_LATE_LINES)
        return [
            {"stage": stage, "place": self._code.place(line), "share": round(share, 3)}
            for stage, line, share in found
        ]

    def iterating_share(self, stage: str) -> float | None:
        """Return the share of *stage*'s samples in which the loop was fetching its next item."""
        with self._lock:
            return self._window.iterating_share(stage)

    def _run(self) -> None:
        own_random = random.Random()  # The global one is the user's.
        while not self._stop.wait(INTERVAL_SECONDS * own_random.uniform(1 - JITTER, 1 + JITTER)):
            self._take()

    def _take(self) -> None:
        stage = self._stage()
        if stage == STAGES[SYNC]:
            return
        stack = stack_of(sys._current_frames().get(self._watched()))
        line = line_of(stack, self._code.has)
        sample = Sample(stage, line, self._loop.is_fetching(stack))
        with self._lock:
            self._window.add(sample)
        self.samples += 1


def line_of(stack: Sequence[Spot], is_users: Callable[[str], bool]) -> Line | None:
    """Return the user's line that *stack*, innermost first, is in or has called others from."""
    for code, offset in stack:
        if is_users(code.co_filename):
            return Line(code.co_qualname, code.co_filename, _number(code, offset))
    return None


def _number(code: CodeType, offset: int) -> int:
    """Return the line at *offset*; the first of *code* where the compiler gave none."""
    for begin, end, number in code.co_lines():
        if begin <= offset < end and number is not None:
            return number
    return code.co_firstlineno
