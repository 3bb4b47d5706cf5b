"""What fires again and again for one rank is one incident, with one name."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest

from rankskew.client.prometheus import Prometheus, Series
from rankskew.report.incidents import (
    AlertIncident,
    Firing,
    find,
    firings,
    identity,
    incident_id,
    incidents,
)
from tests.rankskew.report.fake_history import FakeHistory

T = 1_794_400_020.0  # 2026-11-11 12:27 UTC
RANK = {"cluster": "eu", "job_id": "llama", "rank": "3", "instance": "n1:9917"}


def firing(spans: Sequence[tuple[float, float]], alert: str = "Straggler", **labels: str) -> Firing:
    return Firing({"alertname": f"Rankskew{alert}", "severity": "warning"} | RANK | labels, spans)


def test_changes_of_one_rank_are_one_incident() -> None:
    """Severity, stage and cause may change, and it may pause for less than the gap."""
    found = incidents(
        [
            firing([(T, T + 300)], stage="data", cause="input"),
            firing([(T + 600, T + 1800)], stage="forward", cause="cpu", severity="critical"),
        ],
        gap_seconds=600,
    )

    (one,) = found
    assert (one.begin, one.end, one.severity) == (T, T + 1800, "critical")
    assert one.spans == [(T, T + 300), (T + 600, T + 1800)]
    assert (one.mostly("stage"), one.mostly("cause"), one.mostly("gpu_uuid")) == (
        *("forward", "cpu"),
        None,
    )
    assert one.place == "rank 3 on n1:9917"


def test_long_break_ends_an_incident() -> None:
    """Each of the two has only what fired in it."""
    long = firing([(T, T + 60), (T + 3600, T + 3660)])
    one, other = incidents([long], gap_seconds=600)

    assert (one.spans, other.spans) == ([(T, T + 60)], [(T + 3600, T + 3660)])
    assert one.id != other.id


@pytest.mark.parametrize(
    "other",
    [{"rank": "4"}, {"job_id": "bert"}, {"cluster": "us"}, {"instance": "n2:9917"}],
)
def test_others_are_other_incidents(other: dict[str, str]) -> None:
    """Another rank, job, cluster or node at the same time."""
    assert len(incidents([firing([(T, T + 60)]), firing([(T, T + 60)], **other)], 600)) == 2


def test_job_hangs_once() -> None:
    """The suspect may change while a job hangs."""
    (one,) = incidents(
        [
            firing([(T, T + 60)], "JobHung", rank="3"),
            firing([(T + 60, T + 120)], "JobHung", rank="12", instance="n2:9917"),
        ],
        600,
    )

    assert one.who == {"cluster": "eu", "job_id": "llama"}
    assert one.place == "ranks 3, 12 on n1:9917"


def test_rank_keeps_its_incident_when_it_learns_its_group() -> None:
    """The peer group of a rank is no part of what it is; of an alert without rank it is."""
    assert identity({"alertname": "x", "rank": "1", "peer_group": "pp0"}) == {"rank": "1"}
    assert identity({"alertname": "x", "peer_group": "pp0"}) == {"peer_group": "pp0"}


def test_id_says_when_and_never_changes() -> None:
    """An id in somebody's notes is good for ever: this one is written down here."""
    who = {"cluster": "eu", "job_id": "llama", "rank": "3"}
    found = incident_id("RankskewStraggler", who, T)

    assert found == "1111-1227-slr2"
    assert incident_id("RankskewStraggler", dict(reversed(who.items())), T + 59) == found
    assert incident_id("RankskewSlowNode", who, T) != found


def test_lines_become_firings() -> None:
    """ALERTS without its state, for as long as it has values."""
    labels = {"alertname": "RankskewStraggler", "alertstate": "firing", "rank": "3"}
    (found,) = firings([Series("", labels, [(0, 1), (15, 1), (60, 1)])], 15)

    assert found == Firing({"alertname": "RankskewStraggler", "rank": "3"}, [(0, 30), (60, 75)])


def test_place_without_a_rank() -> None:
    """A GPU, a node, a peer group or the whole job."""
    who = {"gpu_uuid": "GPU-1", "instance": "n1"}
    places = [
        AlertIncident("x", labels, [Firing(labels, [(0, 1)])]).place
        for labels in (who, {"instance": "n1"}, {"peer_group": "pp0"}, {})
    ]

    assert places == ["GPU-1 on n1", "n1", "pp0", "the job"]


# ---- By its id ---------------------------------------------------------------------------------

LABELS = {"alertname": "RankskewStraggler", "cluster": "eu", "job_id": "llama", "rank": "3"}
BEGIN = datetime(2026, 11, 11, 12, 27, tzinfo=UTC).timestamp()
ID = incident_id("RankskewStraggler", identity(LABELS), BEGIN)


def found(
    incident: str, now: float
) -> tuple[tuple[str, Mapping[str, str], float] | None, FakeHistory]:
    fake = FakeHistory({"ALERTS": [(LABELS, [(BEGIN + 45, BEGIN + 600)], 1.0)]})
    with fake.serve() as url:
        return find(Prometheus(url), incident, now), fake


def test_incident_is_found_in_its_minute() -> None:
    """Whatever its labels are by then."""
    known, fake = found(ID, BEGIN + 86_400)

    assert known == ("RankskewStraggler", identity(LABELS), BEGIN)
    assert len(fake.asked) == 1


def test_id_of_last_december_is_found_in_january() -> None:
    """An id has no year: the minute has passed in the year before."""
    known, fake = found(ID, BEGIN + 90 * 86_400)

    assert known is not None
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
