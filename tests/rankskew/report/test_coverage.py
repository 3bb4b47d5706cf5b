"""Which alerts a Prometheus evaluates is known, what a period can tell, and why not the rest."""

from rankskew.client.prometheus import Prometheus
from rankskew.report.coverage import (
    NO_DATA,
    NO_EXPORTERS,
    NO_RULES,
    RULES_RUN,
    SCRAPED,
    PeriodCoverage,
    Rules,
    read_coverage,
    read_rules,
    shipped,
)
from rankskew.report.history import Grid, PastSeries
from tests.rankskew.report.fake_history import FakeHistory, Written, loaded

HOUR = 3600.0
TIMES = Grid(0, 10 * HOUR - 60, 60)
Spans = list[tuple[float, float]]


def coverage(ruled: Spans, scraped: Spans, up: Spans) -> PeriodCoverage:
    """Return the coverage when rules were evaluated, exporters answered, anything was there."""
    past: dict[str, list[Written]] = {
        RULES_RUN: [({}, ruled, 1.0)],
        SCRAPED: [({}, scraped, 1.0)],
        "up": [({}, up, 1.0)],
    }
    with FakeHistory(past).serve() as url:
        return read_coverage(PastSeries(Prometheus(url)), TIMES)


def test_everything_is_covered() -> None:
    """A restart of some minutes is no hole."""
    found = coverage([(0, 4 * HOUR), (4 * HOUR + 600, 10 * HOUR)], [], [])

    assert found.holes == []
    assert (found.watched_seconds, found.asked_seconds) == (10 * HOUR - 600, 10 * HOUR)


def test_each_hole_has_its_reason() -> None:
    """Retention, rules that were loaded later, exporters that nobody scraped."""
    found = coverage(
        ruled=[(4 * HOUR, 8 * HOUR)], scraped=[(2 * HOUR, 8 * HOUR)], up=[(2 * HOUR, 10 * HOUR)]
    )
    assert found.watched_seconds == 4 * HOUR
    # Exporters answered for half of the first hole, so that is not why it is one.
    assert found.holes == [((0, 4 * HOUR), NO_RULES), ((8 * HOUR, 10 * HOUR), NO_EXPORTERS)]
    nothing = coverage([], [], [])
    assert (nothing.watched_seconds, nothing.holes) == (0.0, [((0, 10 * HOUR), NO_DATA)])


# ---- Rules -------------------------------------------------------------------------------------


def rules(fake: FakeHistory) -> Rules:
    with fake.serve() as url:
        return read_rules(Prometheus(url))


def test_shortest_interval_of_our_alerts_counts() -> None:
    """Other people's alerts are none of ours, nor are their intervals."""
    others = {"name": "o", "interval": 1.0, "rules": [{"name": "DiskFull"}]}
    groups = [*loaded("Straggler", interval=15), *loaded("GpuLost", interval=120), others]
    found = rules(FakeHistory({}, rules=groups))

    assert (found.interval_seconds, found.is_known) == (15.0, True)
    assert found.loaded == frozenset({"RankskewStraggler", "RankskewGpuLost"})
    assert "RankskewJobHung" in found.missing
    assert "RankskewStraggler" not in found.missing


def test_system_without_that_page_is_read_as_usual() -> None:
    """What is not known is not called missing; a Prometheus without our rules says so."""
    found = rules(FakeHistory({}, rules=None))

    assert (found, found.missing) == (Rules(15.0, False, None), [])
    assert rules(FakeHistory({}, rules=[])) == Rules(15.0, False, frozenset())
    assert len(shipped()) > 20
