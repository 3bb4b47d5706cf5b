"""Tests of how pauses of training are measured."""

import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.faults.pauses import Hooks, Pauses, build, naps
from rank_probe import breath


def test_longest_pause_counts_what_the_probe_used() -> None:
    """Time in which the kernel ran somebody else is no pause of ours, but is kept beside it."""
    pauses = Pauses()
    pauses.add(elapsed=5_000_000, used=1_000_000)
    pauses.add(elapsed=2_000_000, used=3_000_000)

    assert pauses.take() == (0.002, 0.005)
    assert pauses.take() == (0.0, 0.0)


def test_code_of_the_probe_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a hook does is ours; what the script does is not."""
    monkeypatch.setattr(breath, "BREATH_SECONDS", 0.02)
    pauses = Pauses()
    Hooks(pauses).watch()
    try:
        time.sleep(0.05)
        _, before = pauses.take()
        breath.breathe()
        _, held_up = pauses.take()
    finally:
        sys.setprofile(None)

    assert before == 0
    assert 0.02 <= held_up < 0.05


@pytest.mark.parametrize(("name", "is_ours"), [("rank_probe_join", True), ("loader", False)])
def test_only_the_probe_is_blamed(tmp_path: Path, name: str, is_ours: bool) -> None:
    """Whoever computes without a break delays the end of a sleep."""
    pauses = Pauses()
    nap = naps(build(tmp_path), pauses)
    nap(0.001)
    pauses.take()
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1_000_000))  # In C, without a break.

    thread = threading.Thread(target=compute, name=name)
    thread.start()
    for _ in range(10):
        nap(0.001)
    over.set()
    thread.join()
    ours, held_up = pauses.take()

    assert held_up > 0.001
    assert (ours > 0.001) == is_ours


def test_thread_that_ended_is_not_counted(tmp_path: Path) -> None:
    """The join's thread ends with its process group, perhaps during a sleep."""
    pauses = Pauses()
    nap = naps(build(tmp_path), pauses)
    thread = threading.Thread(target=time.sleep, args=(0.05,), name="rank_probe_join")
    thread.start()
    nap(0.1)
    thread.join()

    assert pauses.take()[0] == 0.0
