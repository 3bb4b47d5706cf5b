"""Which alerts a Prometheus evaluates, and how often."""

from exporter.client.prometheus import Prometheus
from exporter.report.rules import Rules, read_rules, shipped
from tests.exporter.report.fake_history import FakeHistory, loaded


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
    """What is not known is not called missing."""
    found = rules(FakeHistory({}, rules=None))

    assert found == Rules(15.0, False, None)
    assert found.missing == []


def test_no_alert_of_ours() -> None:
    """A Prometheus without our rules says so."""
    assert rules(FakeHistory({}, rules=[])) == Rules(15.0, False, frozenset())


def test_all_shipped_alerts_are_known() -> None:
    """They come from the rule files."""
    assert {"RankskewStraggler", "RankskewJobHung", "RankskewExporterDown"} <= shipped()
    assert len(shipped()) > 20
