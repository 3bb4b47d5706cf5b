"""What fires again and again for one rank is one incident."""

from collections.abc import Sequence

import pytest

from rankskew.client.prometheus import Series
from rankskew.report.incidents import AlertIncident, Firing, firings, identity, incidents

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
