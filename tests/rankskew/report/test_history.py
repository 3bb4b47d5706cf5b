"""Weeks of a series are read within the limits of Prometheus."""

from itertools import pairwise

import pytest

from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus
from rankskew.report.history import MOST_POINTS, MOST_QUERIES, Grid, grid, read_past, spans_of
from tests.rankskew.report.fake_history import FakeHistory

DAY = 86_400.0


def test_a_fortnight_is_read_every_quarter_of_a_minute() -> None:
    """80,640 points are eight queries, none of more than Prometheus allows, without a gap."""
    times = grid(20_000 * DAY + 7, 20_014 * DAY + 7)
    chunks = list(times.chunks())

    assert times.step_seconds == 15.0
    assert len(chunks) == 8
    assert all((end - begin) / 15 + 1 <= MOST_POINTS for begin, end in chunks)
    assert all(b[0] - a[1] == 15 for a, b in pairwise(chunks))
    assert (chunks[0][0], chunks[-1][1]) == (times.begin, times.end)


def test_step_is_a_whole_multiple_of_the_interval() -> None:
    """A year every 15 s takes a longer step, so that it takes no more queries.

    Two reports, a few seconds apart, read the same times where they overlap; each stands for the
    step that begins there, so the last is not in the future.
    """
    year, one, other = grid(0, 365 * DAY), grid(1000, 5000), grid(1037, 5037)

    assert year.step_seconds == 120.0
    assert len(list(year.chunks())) <= MOST_QUERIES
    assert grid(0, DAY, 1_000).step_seconds == 90.0
    assert (one.begin, other.begin, one.end, other.end) == (1005, 1050, 4995, 5025)
    assert grid(0, DAY) == Grid(0, DAY - 15, 15.0)


def test_series_go_on_from_query_to_query() -> None:
    """A series of several answers is one, its name left out; each value stands for its step."""
    past = {"x": [({"__name__": "x", "rank": "3"}, [(0, 9_000), (12_000, 1e9)], 2.0)]}
    fake = FakeHistory(past)
    with fake.serve() as url:
        (line,) = read_past(Prometheus(url), "x", Grid(0, 15_000, 1))

    assert len(fake.asked) == 2
    assert line.labels == {"rank": "3"}
    assert spans_of([line], 1) == [(0, 9_000), (12_000, 15_001)]


def test_what_cannot_be_read_is_trouble() -> None:
    fake = FakeHistory({}, most=1, refused="too many samples")
    with fake.serve() as url, pytest.raises(Trouble, match="too many samples"):
        read_past(Prometheus(url), "x", Grid(0, 1_000, 1))
