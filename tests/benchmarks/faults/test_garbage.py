"""Tests of how collections of garbage are told from pauses."""

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.faults.garbage import Garbage
from benchmarks.faults.pauses import Pauses


@pytest.fixture(autouse=True)
def no_listener_stays() -> Iterator[None]:
    """Each Garbage listens for as long as the process lives."""
    before = list(gc.callbacks)
    yield
    gc.callbacks[:] = before


def test_collection_counts_for_as_long_as_it_overlaps() -> None:
    """Not that of a thread that is not watched."""
    mine = threading.current_thread()
    watched, other = Garbage(lambda each: each is mine), Garbage(lambda each: each is not mine)
    began = time.perf_counter_ns()
    gc.collect()
    ended = time.perf_counter_ns()

    used = watched.used(began, ended)
    assert 0.3 * (ended - began) < used <= ended - began
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
