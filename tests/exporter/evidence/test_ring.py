"""The mean of a figure over a window of the last half hour, in bounded memory; also quantiles."""

import math
from collections.abc import Iterable, Mapping

import pytest

from exporter.evidence.growth import Growth
from exporter.evidence.peers import quantiles_of
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


def means(*samples: list[Increment], least: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the means of these samples, five seconds apart, after a first one."""
    ring = Ring(least)
    for number, each in enumerate(([], *samples)):
        ring.add(RANK, 5.0 * number, each)
    return ring.means(RANK, 0.0)


def every(step: float, until: float) -> list[float]:
    return [step * number for number in range(round(until / step) + 1)]


@pytest.mark.parametrize(
    ("ring", "since"),
    [
        # A rank that has just come, or a GPU that is not there.
        (Ring(), 0.0),
        # The first sample is what the second one is held against.
        (filled([100.0]), 0.0),
        # A driver that has stopped answering leaves no old figures behind.
        (filled(every(5.0, 100.0)), 100.0),
        (filled(every(5.0, 100.0)), 101.0),
    ],
)
def test_window_without_two_samples_has_no_figures(ring: Ring, since: float) -> None:
    assert ring.means(RANK, since) == {}
    assert ring.covered_seconds(RANK, since) == 0.0


def test_window_of_the_past_ends_when_it_is_asked_to() -> None:
    """What came after it does not count, nor a figure that was not there yet."""
    ring = filled(every(5.0, 100.0))
    ring.add(RANK, 105.0, [Increment("new", 1.0, 1.0)])

    assert ring.means(RANK, 40.0, until=50.0) == {"clock": pytest.approx(47.5)}
    assert ring.covered_seconds(RANK, 38.0, until=52.0) == 10.0
    assert ring.means(RANK, 41.0, until=49.0) == {}
    assert ring.covered_seconds(RANK, 41.0, until=44.0) == 0.0


@pytest.mark.parametrize("window", [10.0, 30.0, 95.0])
def test_mean_is_that_of_the_window(window: float) -> None:
    """Whatever the window, what was before it does not count."""
    ring = filled(every(5.0, 1_000.0))
    ends = [now for now in every(5.0, 1_000.0) if now > 1_000.0 - window]

    assert ring.means(RANK, 1_000.0 - window)["clock"] == pytest.approx(sum(ends) / len(ends))
    assert ring.covered_seconds(RANK, 1_000.0 - window) == window


@pytest.mark.parametrize("window", [290.0, 350.0, 900.0, DEPTH_SECONDS])
def test_older_windows_are_right_to_a_minute(window: float) -> None:
    """Thinning loses no amount: only the beginning of the window is a minute late at most."""
    ring = filled(every(5.0, 7_200.0))
    covered = ring.covered_seconds(RANK, 7_200.0 - window)

    assert window - 60.0 <= covered <= window
    mean = ring.means(RANK, 7_200.0 - window)["clock"]
    assert mean == pytest.approx(7_200.0 - (covered - 5.0) / 2)


def test_mean_weighs_what_it_is_a_mean_over() -> None:
    """A step counts as much as any other step; samples from before a figure as nothing."""
    found = means(
        [Increment("step_seconds", 9.0, 9.0)],
        [Increment("step_seconds", 3.0, 1.0), Increment("gc_ratio", 0.5, 5.0)],
    )

    assert found == {"step_seconds": 1.2, "gc_ratio": 0.1}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_increment_that_is_no_number_is_left_out(bad: float) -> None:
    """One NaN does not spoil a figure for as long as it is kept."""
    good = Increment("clock", 5.0, 5.0)

    assert means([good, Increment("clock", bad, 5.0)], [good, Increment("clock", 5.0, bad)]) == {
        "clock": 1.0
    }


def test_mean_over_too_little_is_no_figure() -> None:
    """The share of ten segments that were sent again says nothing about a network."""
    some = [Increment("resent", 1.0, 499.0), Increment("idle", 0.0, 0.0)]
    least = {"resent": 100.0}

    assert means(some, least=least) == {}
    assert means(some, [Increment("resent", 1.0, 501.0)], least=least) == {"resent": 0.002}


@pytest.mark.parametrize(("step", "samples"), [(5.0, 55), (2.0, 90), (0.5, 110)])
def test_memory_is_bounded(step: float, samples: int) -> None:
    """After 10,000 samples, at whatever distance, a track has as many as it says and no more."""
    full = filled(every(step, 10_000 * step))

    assert len(full._tracks[RANK]._samples) <= samples
    assert full.covered_seconds(RANK, 0.0) > min(DEPTH_SECONDS - 60.0, 9_900 * step)
    assert full.covered_seconds(RANK, 0.0) <= DEPTH_SECONDS
    # Subjects that are gone are forgotten: a rank that has restarted is another one.
    full.keep({"node"})
    assert full.means(RANK, 0.0) == {}


def test_number_of_figures_is_bounded() -> None:
    """Names that grow without end, whatever made them, do not fill the memory."""
    many = [Increment(f"figure {number}", 1.0, 1.0) for number in range(2 * MOST_FIGURES)]

    assert len(means(many)) == MOST_FIGURES


def test_counter_grows_between_two_readings() -> None:
    """New, after a restart and back in sight, it counts on from where it is now."""
    totals = [None, 50.0, 53.0, 53.0, 20.0, 25.0, None, 600.0, 601.0]
    growth = Growth()

    grown = [growth.of("reads", total) for total in totals]
    assert grown == [None, None, 3.0, 0.0, None, 5.0, None, None, 1.0]


def test_each_of_several_counters_grows_by_itself() -> None:
    """One that begins again, is new or comes back hides none of the others."""
    grown = Growth()

    assert grown.of_each("links", None) == {}
    assert grown.of_each("links", {"4": 1.0, "5": 9.0}) == {}
    assert grown.of_each("links", {"4": 3.0, "5": 0.0, "6": 7.0}) == {"4": 2.0}
    assert grown.of_each("other", {"4": 9.0}) == {}
    assert grown.of_each("links", {"5": 2.0}) == {"5": 2.0}
    assert grown.of_each("links", {"4": 900.0}) == {}


def test_quantiles_are_the_thirds_and_the_middle() -> None:
    """Between two values in proportion, as numpy's; of those who have the figure."""
    figures = [{"clock": each} for each in (40.0, 10.0, 30.0, 20.0)]
    found = quantiles_of([*figures, {"power": 9.0}])

    assert found["clock"] == pytest.approx((20.0, 25.0, 30.0))
    assert found["power"] == (9.0, 9.0, 9.0)
