"""Tests of how pauses of training are measured."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from benchmarks.faults.pauses import Hooks, Paused, Pauses, _read, build, empty_loop, naps
from rank_probe.guest import yielding


def test_longest_pause_counts_what_the_probe_used() -> None:
    """Time in which the kernel ran somebody else is no pause of ours, but is kept beside it."""
    pauses = Pauses()
    pauses.add(1_000_000, 6_000_000, used=1_000_000)
    pauses.add(7_000_000, 9_000_000, used=3_000_000)

    assert pauses.take() == Paused(0.002, 0.005, 0.003)
    assert pauses.take() == Paused(0.0, 0.0, 0.0)


def test_code_of_the_probe_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a hook does is ours; what the script does is not."""
    monkeypatch.setattr(yielding, "TURN_SECONDS", 0.02)
    pauses = Pauses()
    Hooks(pauses).watch()
    try:
        time.sleep(0.05)
        before = pauses.take()
        yielding.give_way()
        paused = pauses.take()
    finally:
        sys.setprofile(None)

    assert before.held_up_seconds == 0
    assert 0.02 <= paused.held_up_seconds < 0.05


HOOK: Final = str(Path(yielding.__file__).with_name("made_up.py"))


def test_hook_that_computes_is_ours() -> None:
    """It counts for as long as its thread used a CPU."""
    assert _ours_in("sum(range(1_000_000))") > 0.001
    assert _ours_in("time.sleep(0.02)") < 0.005


@pytest.mark.parametrize(("name", "is_ours"), [("rank_probe_join", True), ("loader", False)])
def test_hook_that_waits_for_the_probe_is_ours(name: str, is_ours: bool) -> None:
    """A hook may be held up by the probe's own threads, or by others."""
    with _computing(name):
        ours = _ours_in("for _ in range(10): time.sleep(0.001)")
    assert (ours > 0.005) == is_ours


def _ours_in(code: str) -> float:
    """Return the length of the pause that *code* is as a hook."""
    compiled = compile(code, HOOK, "exec")
    pauses = Pauses()
    Hooks(pauses).watch()
    try:
        exec(compiled, {"time": time})
    finally:
        sys.setprofile(None)
    return pauses.take().seconds


@contextmanager
def _computing(name: str) -> Iterator[None]:
    """Have a thread with that *name* compute without a break."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1_000_000))  # In C.

    thread = threading.Thread(target=compute, name=name)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(("name", "is_ours"), [("rank_probe_join", True), ("loader", False)])
def test_only_the_probe_is_blamed(tmp_path: Path, name: str, is_ours: bool) -> None:
    """Whoever computes without a break delays the end of a sleep."""
    pauses = Pauses()
    nap = naps(build(tmp_path), pauses)
    nap(0.001)
    pauses.take()
    with _computing(name):
        for _ in range(10):
            nap(0.001)
    paused = pauses.take()

    assert paused.held_up_seconds > 0.001
    assert (paused.seconds > 0.001) == is_ours


def test_thread_that_ended_is_not_counted(tmp_path: Path) -> None:
    """The join's thread ends with its process group, perhaps during a sleep."""
    pauses = Pauses()
    nap = naps(build(tmp_path), pauses)
    thread = threading.Thread(target=time.sleep, args=(0.05,), name="rank_probe_join")
    thread.start()
    nap(0.1)
    thread.join()

    assert pauses.take().seconds == 0.0


def test_clock_of_a_thread_that_ended_counts_nothing() -> None:
    """It may end while a hook runs."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    assert _read(clock) > 0
    over.set()
    thread.join()
    deadline = time.monotonic() + 5
    while _read(clock) and time.monotonic() < deadline:  # Its end follows that of its code.
        time.sleep(0.001)

    assert _read(clock) == 0


def test_empty_loop_uses_a_cpu_for_as_long_as_it_is_told(tmp_path: Path) -> None:
    """Its longest pause is a part of that."""
    loop = empty_loop(build(tmp_path))
    before = time.thread_time()
    longest = loop(0.05)

    assert time.thread_time() - before >= 0.05
    assert 0 < longest < 0.05
    assert loop(0.0) == 0.0
