"""Weeks of a series are read within the limits of Prometheus; counters grow across restarts."""

from itertools import pairwise

import pytest

from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus
from rankskew.report.history import (
    MOST_POINTS,
    MOST_QUERIES,
    Grid,
    PastSeries,
    grid,
    growth,
    stretches,
)
from tests.rankskew.report.fake_history import FakeHistory, Written

DAY = 86_400.0
HOUR = 3600.0


def test_a_fortnight_is_read_at_the_interval_of_the_rules() -> None:
    """80,640 points are eight queries, none of more than Prometheus allows, without a gap."""
    times = grid(20_000 * DAY + 7, 20_014 * DAY + 7, 15.0)
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
    year, one, other = grid(0, 365 * DAY, 15.0), grid(1000, 5000, 60.0), grid(1037, 5037, 60.0)

    assert year.step_seconds == 120.0
    assert len(list(year.chunks())) <= MOST_QUERIES
    assert [grid(0, DAY, 15.0, least).step_seconds for least in (100.0, 30.0)] == [105.0, 30.0]
    assert (one.begin, other.begin, one.end, other.end) == (1020, 1080, 4980, 4980)
    assert grid(0, DAY, 60.0) == Grid(0, DAY - 60, 60.0)


@pytest.mark.parametrize(
    ("end", "most", "queries"), [(15_000, 11_000, 2), (1_000, 300, 7)], ids=["many", "too much"]
)
def test_series_go_on_from_query_to_query(end: int, most: int, queries: int) -> None:
    """A series of several answers is one, its name left out; what is too much is read in halves."""
    words = "query processing would load too many samples into memory in query execution"
    past = {"x": [({"__name__": "x", "rank": "3"}, [(0, 1e9)], 2.0)]}
    fake = FakeHistory(past, most=most, refused=words)
    with fake.serve() as url:
        (line,) = PastSeries(Prometheus(url)).read("x", Grid(0, end, 1))

    assert len(fake.asked) == queries
    assert line.labels == {"rank": "3"}
    assert [at for at, _ in line.points] == [float(n) for n in range(end + 1)]


@pytest.mark.parametrize(
    "words", ["parse error", "too many samples"], ids=["other words", "never enough"]
)
def test_what_cannot_be_read_is_trouble(words: str) -> None:
    """Another refusal is not tried again, and halving ends."""
    fake = FakeHistory({}, most=1, refused=words)
    with fake.serve() as url, pytest.raises(Trouble, match=words):
        PastSeries(Prometheus(url)).read("x", Grid(0, 1_000, 1))

    assert len(fake.asked) <= 5


# ---- Counters ----------------------------------------------------------------------------------


def grown(
    written: list[Written], parts: list[tuple[float, float]], series: int = 1
) -> dict[tuple[str, ...], float]:
    """Return the growth by rank and stage; none can grow by more than 8 a second."""
    with FakeHistory({"x": written}).serve() as url:
        times = Grid(0, 10 * HOUR, 60)
        found = growth(PastSeries(Prometheus(url)), "x", ("rank",), parts, times, series, 8.0)
    return dict(found)


def values(rank: str, *steps: tuple[float, float]) -> list[Written]:
    """Return a counter that has each value from its time on, for ten minutes."""
    return [({"rank": rank, "n": "1"}, [(at, at + 600)], value) for at, value in steps]


@pytest.mark.parametrize(
    ("steps", "parts", "series", "growth_of_it"),
    [
        # A fall is a new process: what it has counted since counts.
        ([(0, 0), (600, 100), (1200, 40), (1800, 50)], [(0, 2400)], 1, 150.0),
        # A Prometheus that is younger than the job finds a large value at first.
        ([(0, 9000), (600, 9100)], [(0, 1200)], 1, 100.0),
        # As much as this can have been counted since the last scrape.
        ([(0, 500), (600, 600)], [(0, 1200)], 1, 600.0),
        # The first value of a rank that joins later is its growth.
        ([(1200, 30), (1800, 40)], [(0, 3600)], 1, 40.0),
        # The step that hung was counted at its end, between the stretches.
        ([(0, 0), (600, 100), (4200, 20_000), (4800, 20_010)], [(0, 1200), (4200, 5400)], 1, 110.0),
        # What grew after the last multiple of a long step counts too.
        ([(0, 0), (650, 100)], [(0, 700)], 850_000, 100.0),
        # A job without a join has none.
        ([], [(0, 600)], 1, None),
        ([], [], 1, None),
    ],
)
def test_counters_grow(
    steps: list[tuple[float, float]],
    parts: list[tuple[float, float]],
    series: int,
    growth_of_it: float | None,
) -> None:
    """Each has a value from its time on, for ten minutes."""
    found = grown(values("3", *steps), parts, series)

    assert found == ({} if growth_of_it is None else {("3",): growth_of_it})


def test_many_series_are_read_less_often() -> None:
    """A step as long as the data allows; the growth is the same."""
    fake = FakeHistory({"x": values("3", (0, 0), (600, 100))})
    with fake.serve() as url:
        history = PastSeries(Prometheus(url))
        growth(history, "x", ("rank",), [(0, 10 * HOUR)], Grid(0, 1, 15), 10_000, 8.0)

    assert [form["step"] for form in fake.asked] == ["360"]


def test_stretches_leave_out_hangs() -> None:
    """Each begins a minute after the hang before it, when its step has been counted."""
    assert stretches((0, 1000), [(100, 200), (600, 700)]) == [(0, 100), (260, 600), (760, 1000)]
    assert stretches((0, 1000), []) == [(0, 1000)]
    assert stretches((0, 1000), [(0, 960)]) == []
