"""How pauses of training are measured, and which are the probe's."""

import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from benchmarks.faults.ranks.garbage import Garbage
from benchmarks.faults.ranks.pauses import Hooks, Paused, Pauses, build, naps
from rank_probe.guest import yielding


def test_longest_pause_counts_what_the_probe_used() -> None:
    """Time in which the kernel ran somebody else is no pause of ours, but is kept beside it."""
    pauses = Pauses()
    pauses.add(1_000_000, 6_000_000, used=1_000_000)
    pauses.add(7_000_000, 9_000_000, used=3_000_000)

    assert pauses.take() == Paused(0.002, 0.005, 0.003)
    assert pauses.take() == Paused(0.0, 0.0, 0.0)


HOOK: Final = str(Path(yielding.__file__).with_name("made_up.py"))


def test_hook_that_computes_is_ours() -> None:
    """It counts for as long as its thread used a CPU."""
    assert _ours_in("sum(range(1_000_000))") > 0.001
    assert _ours_in("time.sleep(0.02)") < 0.005


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


@pytest.fixture(autouse=True)
def only_collections_of_the_test() -> Iterator[None]:
    """Each Garbage listens for as long as the process lives."""
    before = list(gc.callbacks)
    gc.disable()
    yield
    gc.enable()
    gc.callbacks[:] = before


def test_collection_counts_for_as_long_as_it_overlaps() -> None:
    """Not that of a thread that is not watched."""
    mine = threading.current_thread()
    watched, other = Garbage(lambda each: each is mine), Garbage(lambda each: each is not mine)
    began, used_before = time.perf_counter_ns(), time.thread_time_ns()
    gc.collect()
    ended, in_all = time.perf_counter_ns(), time.thread_time_ns() - used_before

    used = watched.used(began, ended)
    assert 0.3 * in_all < used <= in_all
    assert 0 < watched.used(began, (began + ended) // 2) < used
    assert watched.used(ended, ended + 1_000_000) == 0
    assert other.used(began, ended) == 0


def test_collection_is_no_pause_of_the_probe() -> None:
    """Its length by the clock stays."""
    pauses = Pauses()
    pauses.begin()
    gc.collect()
    pauses.end()
    paused = pauses.take()

    assert paused.held_up_seconds > 0.005
    assert paused.seconds < 0.2 * paused.held_up_seconds
