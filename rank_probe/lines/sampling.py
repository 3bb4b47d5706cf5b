"""Samples one thread during one lateness: where it is, and what it does there."""

import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType
from typing import Final

from rank_probe.guest.guard import never_raise
from rank_probe.lines.loop_frames import Spot, TrainingLoop, stack_of
from rank_probe.lines.sample_window import WHOLE, SampleWindow, StackSample, StateShare
from rank_probe.lines.system_calls import end_of
from rank_probe.lines.training_thread import TrainingThread
from rank_probe.lines.user_code import CodeLine, UserCode
from rank_probe.wire.snapshot import OF_THREAD
from rank_probe.wire.stages import STAGES, SYNC

INTERVAL_SECONDS: Final = 0.05
# Until the first answer, which the first page waits for, or until FIRST_SAMPLES have been taken.
FIRST_INTERVAL_SECONDS: Final = 0.01
FIRST_SAMPLES: Final = 150
# Large, or samples of equally long steps would always hit the same moments of a step.
JITTER: Final = 0.5
# Between the two looks of a sample. A watched thread that runs Python adds 5 ms.
LOOK_SECONDS: Final = 0.004
# Ordinary timer lateness stays below this.
LEAST_DELAY: Final = 0.001
# Caps a long gap: a process that was stopped did nothing meanwhile.
MOST_WEIGHT: Final = 20.0
# Together with OF_THREAD at most 128, the same limit as for a line.
THREAD_CHARACTERS: Final = 120
NANOSECONDS: Final = 1_000_000_000

Parts = Callable[[Sequence[Spot], CodeLine | None], tuple[StateShare, ...]]


class Sampling:
    """The samples of one *thread* during one lateness, taken by a separate daemon thread.

    A sample is two looks at the thread, a few milliseconds apart. Their difference gives how long
    the thread ran; the second look gives where it was. A sample that begins in one stage and ends
    in another is not split: the second look alone decides what the thread did.

    Hold *lock* to use *window*. *late_stage* may be reassigned at any time.
    """

    def __init__(
        self,
        late_stage: str,
        code: UserCode,
        thread: Callable[[], int],
        stage: Callable[[], str],
        spent: Callable[[], Sequence[int]],
        backward: Callable[[], Sequence[CodeType]],
        *,
        before_model: Callable[[], bool],
        on_first: Callable[[], None],
    ) -> None:
        self.late_stage = late_stage
        self.code = code
        self._watched = thread
        self._stage = stage
        self._spent = spent
        self._spent_before = spent()
        self._before_model = before_model
        self._on_first: Callable[[], None] | None = on_first
        self._loop = TrainingLoop(backward, code.has)
        self.window = SampleWindow()
        self.lock = threading.Lock()
        self._stop = threading.Event()
        self.samples = 0
        run = never_raise(self._run)
        threading.Thread(target=run, name="rank_probe_stacks", daemon=True).start()

    def stop(self) -> None:
        """Take no more samples; does not wait for the thread."""
        self._stop.set()

    def _run(self) -> None:
        own_random = random.Random()  # The global generator belongs to the user.
        looks = TrainingThread(self._place)
        try:
            while not self._stop.is_set():
                pause = self._interval() * _jittered(own_random)
                due = time.perf_counter_ns() + round(pause * NANOSECONDS)
                # Not `Event.wait`: the code it runs after waking would delay the look.
                time.sleep(pause)
                self._take(looks, due, pause, LOOK_SECONDS * _jittered(own_random))
                # Once: when the late stage has lines, and states where they can be read.
                if self._on_first is not None and self.window.has_answer(self.late_stage):
                    told, self._on_first = self._on_first, None
                    told()
        finally:
            looks.close()

    def _interval(self) -> float:
        is_first = self._on_first is not None and self.samples < FIRST_SAMPLES
        return min(FIRST_INTERVAL_SECONDS, INTERVAL_SECONDS) if is_first else INTERVAL_SECONDS

    def _take(self, looks: TrainingThread, due: int, pause: float, seconds: float) -> None:
        ident = self._watched()
        first = looks.begin(ident)
        before = self._stage()
        planned = (pause + seconds) * NANOSECONDS
        delay = looks.delay(first, due)
        if delay >= LEAST_DELAY * NANOSECONDS:
            # A call held the interpreter lock. If the watched thread made it, that thread has not
            # moved: it released the lock when the call returned. Otherwise it may have moved on.
            stage = self._held_in(before, delay)
            held: Parts = partial(looks.held, first, delay, stage == before)
            if not self._waits(stage):
                self._add(ident if stage == before else 0, stage, delay / planned, held)
        time.sleep(seconds)
        last = looks.end()
        self._spent_before = self._spent()
        stage = self._stage()
        if self._waits(stage):
            return
        weight = 1.0
        if first is not None and last is not None and stage == before:
            # A call that holds the interpreter lock prevents looks, so this one weighs more.
            took = last.at - first.at - max(last.own_queue - first.own_queue, 0)
            weight += max(took - seconds * NANOSECONDS, 0) / planned
        self._add(ident, stage, weight, partial(looks.parts, first, last, stage == before))
        self.samples += 1

    def _held_in(self, before: str, delay: int) -> str:
        """Return *before* if it lasted through the *delay*, else the stage that grew most."""
        pairs = zip(self._spent(), self._spent_before, strict=True)
        grown = {stage: b - a for stage, (b, a) in zip(STAGES, pairs, strict=False)}
        if grown.get(before, delay) >= delay:
            return before
        return max(grown, key=lambda stage: grown[stage])

    def _waits(self, stage: str) -> bool:
        """Whether *stage* is a `sync` to ignore: only a rank stuck in `sync` is sampled there."""
        return stage == STAGES[SYNC] != self.late_stage

    def _add(self, ident: int, stage: str, weight: float, parts: Parts) -> None:
        """Count the thread's current place, with the shares that *parts* returns for it."""
        stack = stack_of(sys._current_frames().get(ident))
        if (line := line_of(stack, self.code.has)) is not None:
            line = line._replace(before_model=self._before_model())
        weight = min(weight, MOST_WEIGHT)
        shares = (each._replace(share=round(each.share * weight)) for each in parts(stack, line))
        is_fetching = self._loop.is_fetching(stack)
        sample = StackSample(stage, line, is_fetching, round(WHOLE * weight), tuple(shares))
        with self.lock:
            self.window.add(sample)

    def _place(self, thread: threading.Thread) -> str:
        """Return the name of *thread* and its line: the user's, or else any line on its stack."""
        stack = stack_of(sys._current_frames().get(thread.ident or 0))
        line = line_of(stack, self.code.has) or line_of(stack, bool)
        at = "" if line is None else f" at {self.code.place(line)}"
        return OF_THREAD + end_of(f"{thread.name}`{at}", THREAD_CHARACTERS)


def _jittered(own_random: random.Random) -> float:
    return own_random.uniform(1 - JITTER, 1 + JITTER)


def line_of(stack: Sequence[Spot], is_users: Callable[[str], bool]) -> CodeLine | None:
    """Return the innermost user line on *stack*, itself innermost first; None without one."""
    for code, offset in stack:
        if is_users(code.co_filename):
            return CodeLine(code.co_qualname, code.co_filename, _number(code, offset))
    return None


def _number(code: CodeType, offset: int) -> int:
    """Return the line number at *offset*; the first line of *code* if the compiler gave none."""
    for begin, end, number in code.co_lines():
        if begin <= offset < end and number is not None:
            return number
    return code.co_firstlineno
