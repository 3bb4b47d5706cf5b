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


@pytest.mark.parametrize(
    ("labels", "later"),
    [*(({name: "other"}, 0) for name in ("rank", "job_id", "cluster", "instance")), ({}, 3600)],
)
def test_others_are_other_incidents(labels: dict[str, str], later: int) -> None:
    """Another rank, job, cluster or node at the same time, or the same after a long break."""
    fired = [firing([(T, T + 60)]), firing([(T + later, T + later + 60)], **labels)]
    found = incidents(fired, 600)

    assert len({each.id for each in found}) == 2
    assert [each.spans for each in found] == [[(T, T + 60)], [(T + later, T + later + 60)]]


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


def test_id_says_when_and_never_changes() -> None:
    """An id in somebody's notes is good for ever: this one is written down here."""
    who = {"cluster": "eu", "job_id": "llama", "rank": "3"}
    found = incident_id("RankskewStraggler", who, T)

    assert found == "1111-1227-slr2"
    assert incident_id("RankskewStraggler", dict(reversed(who.items())), T + 59) == found
    assert incident_id("RankskewSlowNode", who, T) != found


def test_lines_become_firings() -> None:
    labels = {"alertname": "RankskewStraggler", "alertstate": "firing", "rank": "3"}
    (found,) = firings([Series("", labels, [(0, 1), (15, 1), (60, 1)])], 15)

    assert found == Firing({"alertname": "RankskewStraggler", "rank": "3"}, [(0, 30), (60, 75)])


def test_place_without_a_rank() -> None:
    """A GPU, a node, a peer group or the whole job; the peer group of a rank is no part of it."""
    who = {"gpu_uuid": "GPU-1", "instance": "n1"}
    places = [
        AlertIncident("x", labels, [Firing(labels, [(0, 1)])]).place
        for labels in (who, {"instance": "n1"}, {"peer_group": "pp0"}, {})
    ]

    assert places == ["GPU-1 on n1", "n1", "pp0", "the job"]
    assert identity({"alertname": "x", "rank": "1", "peer_group": "pp0"}) == {"rank": "1"}
    assert identity({"alertname": "x", "peer_group": "pp0"}) == {"peer_group": "pp0"}


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


@pytest.mark.parametrize(
    ("incident", "days", "is_known", "queries"),
    [
        (ID, 1, True, 1),
        # An id has no year: in January, this year's minute is still to come.
        (ID, 90, True, 1),
        # The minute alone does not make it known.
        (f"{ID[:-1]}x", 1, False, 2),
        # A typing error needs no Prometheus.
        *((wrong, 1, False, 0) for wrong in ("", "wrong", "1111-1227-SLR2", "9999-9999-aaaa")),
        ("0230-0000-aaaa", 1, False, 0),
    ],
)
def test_incident_is_found_in_its_minute(
    incident: str, days: int, is_known: bool, queries: int
) -> None:
    """Whatever its labels are by then."""
    known, fake = found(incident, BEGIN + days * 86_400)

    assert known == (("RankskewStraggler", identity(LABELS), BEGIN) if is_known else None)
    assert len(fake.asked) == queries
