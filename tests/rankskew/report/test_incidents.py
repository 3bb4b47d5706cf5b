"""What fires again and again for one rank is one incident; what it cost is measured beside it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rankskew.report.incidents import SLOWER, Firing, Group, grouped, identity, incident
from rankskew.times import iso
from tests.alerts.promtool import answers

T = 1_794_400_020.0  # 2026-11-11 12:27 UTC
RANK = {"cluster": "eu", "job_id": "llama", "rank": "3", "instance": "n1:9917"}


def firing(spans: Sequence[tuple[float, float]], alert: str = "Straggler", **labels: str) -> Firing:
    return Firing({"alertname": f"Rankskew{alert}", "severity": "warning"} | RANK | labels, spans)


def test_changes_of_one_rank_are_one_incident() -> None:
    """Severity, stage and cause may change, and it may pause for less than the gap."""
    found = grouped(
        [
            firing([(T, T + 300)], stage="data", cause="input"),
            firing([(T + 600, T + 1800)], stage="forward", cause="cpu", severity="critical"),
        ]
    )

    (one,) = map(incident, found)
    assert (one.begin, one.end, one.seconds) == (iso(T), iso(T + 1800), 1800)
    assert (one.severity, one.stage, one.cause) == ("critical", "forward", "cpu")
    assert one.place == "rank 3 on n1:9917"


@pytest.mark.parametrize(
    ("labels", "later"),
    [*(({name: "other"}, 0) for name in ("rank", "job_id", "cluster", "instance")), ({}, 3600)],
)
def test_others_are_other_incidents(labels: dict[str, str], later: int) -> None:
    """Another rank, job, cluster or node at the same time, or the same after a long break."""
    fired = [firing([(T, T + 60)]), firing([(T + later, T + later + 60)], **labels)]
    found = [(each.begin, each.end) for each in grouped(fired)]

    assert found == [(T, T + 60), (T + later, T + later + 60)]


def test_job_hangs_once() -> None:
    """The suspect may change while a job hangs."""
    (one,) = grouped(
        [
            firing([(T, T + 60)], "JobHung", rank="3"),
            firing([(T + 60, T + 120)], "JobHung", rank="12", instance="n2:9917"),
        ]
    )

    assert one.who == {"cluster": "eu", "job_id": "llama"}
    assert incident(one).place == "ranks 3, 12 on n1:9917"


def test_place_without_a_rank() -> None:
    """A GPU, a node, a peer group or the whole job; the peer group of a rank is no part of it."""
    who = {"gpu_uuid": "GPU-1", "instance": "n1"}
    places = [
        incident(Group("x", labels, [Firing(labels, [(0, 1)])], 0, 1)).place
        for labels in (who, {"instance": "n1"}, {"peer_group": "pp0"}, {})
    ]

    assert places == ["GPU-1 on n1", "n1", "pp0", "the job"]
    assert identity({"alertname": "x", "rank": "1", "peer_group": "pp0"}) == {"rank": "1"}
    assert identity({"alertname": "x", "peer_group": "pp0"}) == {"peer_group": "pp0"}


def test_what_late_ranks_cost_since_is_no_cost_of_a_slower_job(tmp_path: Path) -> None:
    """What they cost before is in the pace before; a job that hangs has neither.

    Each change is of the job's whole steps, so of two the larger one is what they cost together.
    """
    change = 'rankskew_job_change_gpus{job_id="j",scope="all",stage="%s",instance="%s"}'
    late = 'job_kind:rankskew_gpus_lost:sum{job_id="j",kind="persistent"}'
    series = [
        *({"series": change % ("data", node), "values": "_x9 0.75x20 2.25x20"} for node in "nm"),
        {"series": change % ("sync", "n"), "values": "_x9 0.5x40"},
        {"series": late, "values": "0.25x29 1.75x9 stale _x40"},
    ]
    asked = [(SLOWER, 15.0 * at) for at in (5, 15, 35, 45)]
    found = answers(tmp_path, series, asked, rules=(), groups=())

    known = [({"job_id": "j"}, 0.75)]
    assert [found[each] for each in asked] == [[], known, known, []]
