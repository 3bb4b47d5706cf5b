"""Tests of the probe's memory over many steps; benchmarks/endurance.py does ten million."""

import tracemalloc

import pytest

from benchmarks.endurance import read_meanwhile, train
from rank_probe.measure.timeline import Timeline


@pytest.fixture
def timeline() -> Timeline:
    return Timeline(automatic=True)


def retained(timeline: Timeline, steps: int) -> int:
    """Return the bytes that are held after *steps* more steps, of those allocated while traced."""
    train(timeline, steps)
    timeline.steps.totals()
    return tracemalloc.get_traced_memory()[0]


def test_memory_stays_when_nobody_reads(timeline: Timeline) -> None:
    """Of 200,000 steps that no thread asked for, the last 40,000 hold no more than those before."""
    train(timeline, 150_000)
    tracemalloc.start()
    try:
        before = retained(timeline, 10_000)
        after = retained(timeline, 40_000)
    finally:
        tracemalloc.stop()

    assert after - before < 64 * 1024


def test_every_step_is_counted_while_another_thread_reads(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the totals from the pusher's thread loses no step and counts none twice."""
    monkeypatch.setattr("benchmarks.endurance.INTERVAL_SECONDS", 0.001)
    with read_meanwhile(timeline):
        train(timeline, 20_000)
    timeline.finish()

    totals = timeline.steps.totals()
    assert totals.steps == 20_000
