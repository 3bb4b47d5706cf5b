"""An id leads back to its incident."""

from datetime import UTC, datetime

import pytest

from exporter.client.prometheus import Prometheus
from exporter.report.incidents import identity, incident_id
from exporter.report.known import Known, find
from tests.exporter.report.fake_history import FakeHistory

LABELS = {"alertname": "RankskewStraggler", "cluster": "eu", "job_id": "llama", "rank": "3"}
BEGIN = datetime(2026, 11, 11, 12, 27, tzinfo=UTC).timestamp()
ID = incident_id("RankskewStraggler", identity(LABELS), BEGIN)


def found(incident: str, now: float) -> tuple[Known | None, FakeHistory]:
    fake = FakeHistory({"ALERTS": [(LABELS, [(BEGIN + 45, BEGIN + 600)], 1.0)]})
    with fake.serve() as url:
        return find(Prometheus(url), incident, now), fake


def test_incident_is_found_in_its_minute() -> None:
    """Whatever its labels are by then."""
    known, fake = found(ID, BEGIN + 86_400)

    assert known == Known("RankskewStraggler", identity(LABELS), BEGIN)
    assert len(fake.asked) == 1


def test_id_of_last_december_is_found_in_january() -> None:
    """An id has no year: the minute has passed in the year before."""
    known, fake = found(ID, BEGIN + 90 * 86_400)

    assert known is not None
    assert known.begin == BEGIN
    assert len(fake.asked) == 1  # This year's is still to come.


@pytest.mark.parametrize(
    "incident", ["", "wrong", "1111-1227-SLR2", "9999-9999-aaaa", "0230-0000-aaaa"]
)
def test_what_is_no_id_asks_nobody(incident: str) -> None:
    """A typing error needs no Prometheus."""
    known, fake = found(incident, BEGIN + 86_400)

    assert known is None
    assert fake.asked == []


def test_other_letters_are_another_incident() -> None:
    """The minute alone does not make it known."""
    known, fake = found(f"{ID[:-1]}x", BEGIN + 86_400)

    assert known is None
    assert len(fake.asked) == 2
