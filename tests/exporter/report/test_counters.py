"""Counters grow across restarts, and what grew before they were seen does not count."""

import pytest

from exporter.client.prometheus import Prometheus
from exporter.report.counters import growth, stretches
from exporter.report.history import Grid, History
from tests.exporter.report.fake_history import FakeHistory, Written

HOUR = 3600.0


def grown(
    written: list[Written], parts: list[tuple[float, float]], series: int = 1
) -> dict[tuple[str, ...], float]:
    """Return the growth by rank and stage; none can grow by more than 8 a second."""
    with FakeHistory({"x": written}).serve() as url:
        times = Grid(0, 10 * HOUR, 60)
        found = growth(History(Prometheus(url)), "x", ("rank",), parts, times, series, 8.0)
    return dict(found)


def values(rank: str, *steps: tuple[float, float]) -> list[Written]:
    """Return a counter that has each value from its time on, for ten minutes."""
    return [({"rank": rank, "n": "1"}, [(at, at + 600)], value) for at, value in steps]


def test_restart_begins_at_nothing() -> None:
    """A fall is a new process: what it has counted since counts."""
    written = values("3", (0, 0), (600, 100), (1200, 40), (1800, 50))

    assert grown(written, [(0, 2400)]) == {("3",): 150.0}


def test_what_was_counted_before_it_was_seen_is_left_out() -> None:
    """A Prometheus that is younger than the job finds a large value at first."""
    assert grown(values("3", (0, 9000), (600, 9100)), [(0, 1200)]) == {("3",): 100.0}
    # As much as this can have been counted since the last scrape.
    assert grown(values("3", (0, 500), (600, 600)), [(0, 1200)]) == {("3",): 600.0}


def test_rank_that_joins_later_counts_from_nothing() -> None:
    """Its first value is its growth."""
    assert grown(values("9", (1200, 30), (1800, 40)), [(0, 3600)]) == {("9",): 40.0}


def test_stretch_after_a_hang_begins_with_what_was_counted() -> None:
    """The step that hung was counted at its end, between the stretches."""
    written = values("3", (0, 0), (600, 100), (4200, 20_000), (4800, 20_010))

    assert grown(written, [(0, 1200), (4200, 5400)]) == {("3",): 110.0}


def test_many_series_are_read_less_often() -> None:
    """A step as long as the data allows; the growth is the same."""
    fake = FakeHistory({"x": values("3", (0, 0), (600, 100))})
    with fake.serve() as url:
        history = History(Prometheus(url))
        growth(history, "x", ("rank",), [(0, 10 * HOUR)], Grid(0, 1, 15), 10_000, 8.0)

    assert [form["step"] for form in fake.asked] == ["360"]


def test_end_is_read_however_long_the_step_is() -> None:
    """What grew after the last multiple of a long step counts too."""
    written = values("3", (0, 0), (650, 100))

    assert grown(written, [(0, 700)], series=850_000) == {("3",): 100.0}


def test_stretches_leave_out_hangs() -> None:
    """Each begins a minute after the hang before it, when its step has been counted."""
    assert stretches((0, 1000), [(100, 200), (600, 700)]) == [(0, 100), (260, 600), (760, 1000)]
    assert stretches((0, 1000), []) == [(0, 1000)]
    assert stretches((0, 1000), [(0, 960)]) == []


@pytest.mark.parametrize("parts", [[], [(0.0, 600.0)]])
def test_no_counter_no_growth(parts: list[tuple[float, float]]) -> None:
    """A job without a join has none."""
    assert grown([], parts) == {}
