"""Weeks of a series are read within the limits of Prometheus."""

from itertools import pairwise

import pytest

from exporter.client.fetch import Trouble
from exporter.client.prometheus import Prometheus
from exporter.report.history import MOST_POINTS, MOST_QUERIES, Grid, History, grid
from tests.exporter.report.fake_history import FakeHistory

DAY = 86_400.0


def test_a_fortnight_is_read_at_the_interval_of_the_rules() -> None:
    """80,640 points are eight queries, none of more than Prometheus allows, without a gap."""
    times = grid(20_000 * DAY + 7, 20_014 * DAY + 7, 15.0)
    chunks = list(times.chunks())

    assert times.step_seconds == 15.0
    assert len(chunks) == 8
    assert all((end - begin) / 15 + 1 <= MOST_POINTS for begin, end in chunks)
    assert all(b[0] - a[1] == 15 for a, b in pairwise(chunks))
    assert (chunks[0][0], chunks[-1][1]) == (times.begin, times.end)


def test_what_is_too_long_is_read_in_whole_multiples() -> None:
    """A year every 15 s takes a longer step, so that it takes no more queries."""
    times = grid(0, 365 * DAY, 15.0)

    assert times.step_seconds == 120.0
    assert len(list(times.chunks())) <= MOST_QUERIES


def test_least_step_is_kept() -> None:
    """A coarse look has a multiple of the interval too."""
    assert grid(0, DAY, 15.0, 100.0).step_seconds == 105.0
    assert grid(0, DAY, 15.0, 30.0).step_seconds == 30.0


def test_times_are_the_same_whenever_somebody_asks() -> None:
    """Two reports, a few seconds apart, read the same times where they overlap."""
    one, other = grid(1_000, 5_000, 60.0), grid(1_037, 5_037, 60.0)

    assert (one.begin, other.begin) == (1_020, 1_080)
    assert one.end == other.end == 4_980


def test_last_time_is_not_in_the_future() -> None:
    """A day has as many times as steps; each stands for the step that begins there."""
    assert grid(0, DAY, 60.0) == Grid(0, DAY - 60, 60.0)


def test_series_go_on_from_query_to_query() -> None:
    """A series of several answers is one; its name is left out."""
    fake = FakeHistory({"x": [({"__name__": "x", "rank": "3"}, [(0, 1e9)], 2.0)]})
    with fake.serve() as url:
        (line,) = History(Prometheus(url)).lines("x", Grid(0, 15_000, 1))

    assert len(fake.asked) == 2
    assert line.labels == {"rank": "3"}
    assert line.times == [float(n) for n in range(15_001)]


def test_what_is_too_much_is_read_in_halves() -> None:
    """Each point is read once, however often a query is halved."""
    words = "query processing would load too many samples into memory in query execution"
    fake = FakeHistory({"x": [({}, [(0, 1e9)], 1.0)]}, most=300, refused=words)
    with fake.serve() as url:
        (line,) = History(Prometheus(url)).lines("x", Grid(0, 1_000, 1))

    assert line.times == [float(n) for n in range(1_001)]


@pytest.mark.parametrize(
    "words", ["parse error", "too many samples"], ids=["other words", "never enough"]
)
def test_what_cannot_be_read_is_trouble(words: str) -> None:
    """Another refusal is not tried again, and halving ends."""
    fake = FakeHistory({}, most=1, refused=words)
    with fake.serve() as url, pytest.raises(Trouble, match=words):
        History(Prometheus(url)).lines("x", Grid(0, 1_000, 1))

    assert len(fake.asked) <= 5
