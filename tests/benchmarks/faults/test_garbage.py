"""Tests of how collections of garbage are told from pauses."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.faults import garbage as module
from benchmarks.faults.garbage import LAST, Garbage
from benchmarks.faults.pauses import Pauses


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
    began = time.perf_counter_ns()
    gc.collect()
    ended = time.perf_counter_ns()

    used = watched.used(began, ended)
    assert 0.3 * (ended - began) < used <= ended - began
    assert 0 < watched.used(began, (began + ended) // 2) < used
    assert watched.used(ended, ended + 1_000_000) == 0
    assert other.used(began, ended) == 0


def test_collection_may_come_while_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any allocation may begin one."""
    garbage = Garbage(lambda _: True)
    gc.collect()
    overlap = module._overlap

    def collecting(*arguments: Any) -> int:
        gc.collect()
        return overlap(*arguments)

    monkeypatch.setattr(module, "_overlap", collecting)
    assert garbage.used(0, time.perf_counter_ns()) > 0


def test_the_last_collections_are_kept() -> None:
    """A pause is short: few can lie in it."""
    garbage = Garbage(lambda _: True)
    gc.collect()
    first = time.perf_counter_ns()
    for _ in range(LAST - 1):
        gc.collect(0)
    assert garbage.used(0, first) > 0
    gc.collect(0)
    assert garbage.used(0, first) == 0


def test_collection_is_no_pause_of_the_probe() -> None:
    """Its length by the clock stays."""
    pauses = Pauses()
    pauses.begin()
    gc.collect()
    pauses.end()
    paused = pauses.take()

    assert paused.held_up_seconds > 0.005
    assert paused.seconds < 0.2 * paused.held_up_seconds
