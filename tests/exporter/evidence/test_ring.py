"""The mean of a figure over any window of the last half hour, in bounded memory."""

import math
from collections.abc import Iterable

import pytest

from exporter.evidence.ring import DEPTH_SECONDS, MOST_FIGURES, Increment, Ring

RANK = ("llama", 2)


def filled(seconds: Iterable[float], figure: str = "clock") -> Ring:
    """Return a ring whose figure is, in each interval, the time at its end."""
    ring = Ring()
    last = 0.0
    for now in seconds:
        ring.add(RANK, now, [Increment(figure, now * (now - last), now - last)])
        last = now
    return ring


def every(step: float, until: float) -> list[float]:
    return [step * number for number in range(round(until / step) + 1)]


def test_subject_that_was_never_sampled_has_no_figures() -> None:
    """A rank that has just come, or a GPU that is not there."""
    ring = Ring()

    assert ring.means(RANK, 0.0) == {}
    assert ring.covered_seconds(RANK, 0.0) == 0.0


def test_one_sample_is_no_window() -> None:
    """The first one is what the second one is held against."""
    ring = Ring()
    ring.add(RANK, 100.0, [Increment("clock", 5.0, 1.0)])

    assert ring.means(RANK, 0.0) == {}
    assert ring.covered_seconds(RANK, 0.0) == 0.0


def test_window_that_nothing_was_sampled_in_has_no_figures() -> None:
    """A driver that has stopped answering leaves no old figures behind."""
    ring = filled(every(5.0, 100.0))

    assert ring.means(RANK, 101.0) == {}
    assert ring.means(RANK, 100.0) == {}
    assert ring.covered_seconds(RANK, 101.0) == 0.0


@pytest.mark.parametrize("window", [10.0, 30.0, 95.0])
def test_mean_is_that_of_the_window(window: float) -> None:
    """Whatever the window, what was before it does not count."""
    ring = filled(every(5.0, 1_000.0))
    ends = [now for now in every(5.0, 1_000.0) if now > 1_000.0 - window]

    assert ring.means(RANK, 1_000.0 - window)["clock"] == pytest.approx(sum(ends) / len(ends))
    assert ring.covered_seconds(RANK, 1_000.0 - window) == window


@pytest.mark.parametrize("window", [300.0, 900.0, DEPTH_SECONDS])
def test_older_windows_are_right_to_a_minute(window: float) -> None:
    """Thinning loses no amount: only the beginning of the window is a minute late at most."""
    ring = filled(every(5.0, 7_200.0))
    covered = ring.covered_seconds(RANK, 7_200.0 - window)

    assert window - 60.0 <= covered <= window
    mean = ring.means(RANK, 7_200.0 - window)["clock"]
    assert mean == pytest.approx(7_200.0 - (covered - 5.0) / 2)


def test_mean_weighs_what_it_is_a_mean_over() -> None:
    """A step counts as much as any other step, in whichever interval it ended."""
    ring = Ring()
    ring.add(RANK, 0.0, [])
    ring.add(RANK, 5.0, [Increment("step_seconds", 9.0, 9.0)])
    ring.add(RANK, 10.0, [Increment("step_seconds", 3.0, 1.0)])

    assert ring.means(RANK, 0.0) == {"step_seconds": 1.2}


def test_figure_that_appears_later_is_of_its_own_time() -> None:
    """Samples from before it count as nothing."""
    ring = filled(every(5.0, 20.0))
    ring.add(RANK, 25.0, [Increment("gc_ratio", 0.5, 5.0)])

    assert ring.means(RANK, 5.0)["gc_ratio"] == pytest.approx(0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_reading_that_is_no_number_is_left_out(bad: float) -> None:
    """One NaN does not spoil a figure for as long as it is kept."""
    ring = Ring()
    ring.add(RANK, 0.0, [])
    ring.add(RANK, 5.0, [Increment("clock", 5.0, 5.0), Increment("clock", bad, 5.0)])
    ring.add(RANK, 10.0, [Increment("clock", 5.0, 5.0), Increment("clock", 5.0, bad)])

    assert ring.means(RANK, 0.0) == {"clock": 1.0}


def test_mean_over_too_little_is_no_figure() -> None:
    """The share of ten segments that were sent again says nothing about a network."""
    ring = Ring({"resent": 100.0})
    ring.add(RANK, 0.0, [])
    ring.add(RANK, 5.0, [Increment("resent", 1.0, 499.0), Increment("idle", 0.0, 0.0)])

    assert ring.means(RANK, 0.0) == {}
    ring.add(RANK, 10.0, [Increment("resent", 1.0, 501.0)])
    assert ring.means(RANK, 0.0) == {"resent": 0.002}


def test_subjects_that_are_gone_are_forgotten() -> None:
    """A rank that has restarted is another subject; the old one goes."""
    ring = filled(every(5.0, 20.0))
    ring.add("node", 20.0, [])
    ring.keep({"node"})

    assert ring.means(RANK, 0.0) == {}


@pytest.mark.parametrize(("step", "samples"), [(5.0, 55), (2.0, 90), (0.5, 110)])
def test_memory_is_bounded(step: float, samples: int) -> None:
    """After 10,000 samples, at whatever distance, a track has as many as it says and no more."""
    full = filled(every(step, 10_000 * step))

    assert len(full._tracks[RANK]._samples) <= samples
    assert full.covered_seconds(RANK, 0.0) > min(DEPTH_SECONDS - 60.0, 9_900 * step)
    assert full.covered_seconds(RANK, 0.0) <= DEPTH_SECONDS


def test_number_of_figures_is_bounded() -> None:
    """Names that grow without end, whatever made them, do not fill the memory."""
    ring = Ring()
    readings = [Increment(f"figure {number}", 1.0, 1.0) for number in range(2 * MOST_FIGURES)]
    ring.add(RANK, 0.0, [])
    ring.add(RANK, 5.0, readings)

    assert len(ring.means(RANK, 0.0)) == MOST_FIGURES
