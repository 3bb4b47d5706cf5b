"""Tests of the garbage collector's pauses."""

import gc
import signal
import time
from types import FrameType

import pytest

from rank_probe.measure.tape import PythonTape, new_tape
from rank_probe.process import garbage
from rank_probe.process.garbage import GarbagePauses

compiled = pytest.mark.skipif(new_tape is PythonTape, reason="only where a compiler built it")


class TakesTime:
    """Takes 20 ms while it is collected."""

    def __init__(self) -> None:
        self.me = self  # Only the collector frees it.

    def __del__(self) -> None:
        time.sleep(0.02)


@compiled
def test_a_collection_is_counted_once() -> None:
    """What passes while the collector runs is added up, and nothing else."""
    pauses = GarbagePauses()
    patches = pauses.attach()
    TakesTime()
    began = time.perf_counter()
    gc.collect()
    took = time.perf_counter() - began
    time.sleep(0.2)
    patches.undo()

    assert 0.02 <= (pauses.seconds() or 0) <= took


@compiled
def test_after_undo_nothing_listens() -> None:
    """The collector's list of callbacks is what it was, and pauses are no longer counted."""
    before = list(gc.callbacks)
    pauses = GarbagePauses()
    pauses.attach().undo()
    TakesTime()
    gc.collect()

    assert gc.callbacks == before
    assert pauses.seconds() == 0.0


@compiled
def test_attaching_within_a_collection_counts_the_next_one() -> None:
    """An end whose beginning nobody saw is not taken for a pause."""
    pauses = GarbagePauses()
    attached = []

    class Attaches:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            attached.append(pauses.attach())
            time.sleep(0.02)

    Attaches()
    gc.collect()
    attached.pop().undo()

    assert pauses.seconds() == 0.0


class Terminated(BaseException):
    """What a handler raises, like SystemExit."""


def test_signal_during_a_collection_reaches_the_user() -> None:
    """Most of the signals that arrive at a bad moment do so there: it may take a second."""

    def handler(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated

    # Python drops what is raised in a callback, and other tests' packages may have left one.
    others = gc.callbacks[:]
    gc.callbacks.clear()
    patches, raised = GarbagePauses().attach(), 0
    heap = [[number] for number in range(400_000)]
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.004)
            try:
                gc.collect()
                time.sleep(0.1)
            except Terminated:
                raised += 1
    finally:
        signal.signal(signal.SIGALRM, before)
        patches.undo()
        gc.callbacks[:] = others

    assert raised == 5
    assert len(heap) == 400_000


def test_not_measured_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback in Python would take the user's signals: there is none, and no reading."""
    monkeypatch.setattr(garbage, "_tape", None)
    before = list(gc.callbacks)
    pauses = GarbagePauses()
    pauses.attach()

    assert gc.callbacks == before
    assert pauses.seconds() is None
