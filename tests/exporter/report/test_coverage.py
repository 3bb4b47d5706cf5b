"""What a period can tell is known, and why the rest cannot."""

from exporter.client.prometheus import Prometheus
from exporter.report.coverage import (
    NO_DATA,
    NO_EXPORTERS,
    NO_RULES,
    RULES_RUN,
    SCRAPED,
    Coverage,
    read_coverage,
)
from exporter.report.history import Grid, History
from tests.exporter.report.fake_history import FakeHistory, Written

HOUR = 3600.0
TIMES = Grid(0, 10 * HOUR - 60, 60)
Spans = list[tuple[float, float]]


def coverage(ruled: Spans, scraped: Spans, up: Spans) -> Coverage:
    """Return the coverage when rules were evaluated, exporters answered, anything was there."""
    past: dict[str, list[Written]] = {
        RULES_RUN: [({}, ruled, 1.0)],
        SCRAPED: [({}, scraped, 1.0)],
        "up": [({}, up, 1.0)],
    }
    with FakeHistory(past).serve() as url:
        return read_coverage(History(Prometheus(url)), TIMES)


def test_everything_is_covered() -> None:
    """A restart of some minutes is no hole."""
    found = coverage([(0, 4 * HOUR), (4 * HOUR + 600, 10 * HOUR)], [], [])

    assert found.holes == []
    assert (found.watched_seconds, found.asked_seconds) == (10 * HOUR - 600, 10 * HOUR)


def test_each_hole_has_its_reason() -> None:
    """Retention, rules that were loaded later, exporters that nobody scraped."""
    found = coverage(
        ruled=[(4 * HOUR, 8 * HOUR)],
        scraped=[(2 * HOUR, 8 * HOUR)],
        up=[(2 * HOUR, 10 * HOUR)],
    )
    assert found.watched_seconds == 4 * HOUR
    # Exporters answered for half of the first hole, so that is not why it is one.
    assert found.holes == [((0, 4 * HOUR), NO_RULES), ((8 * HOUR, 10 * HOUR), NO_EXPORTERS)]


def test_nothing_at_all() -> None:
    """An empty Prometheus covers nothing."""
    found = coverage([], [], [])

    assert (found.watched_seconds, found.holes) == (0.0, [((0, 10 * HOUR), NO_DATA)])
