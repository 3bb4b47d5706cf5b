"""The verdict line says what the page says, and nothing that was known beforehand."""

from typing import Any

from demo.verdict import Health, verdict_of, wrong_names
from devstack.webhook import ReceivedAlert

LABELS = {
    "alertname": "RankskewStraggler",
    "job_id": "nightly",
    "peer_group": "all",
    "rank": "17",
    "stage": "backward",
    "severity": "warning",
}


def page(status: str = "firing", **labels: str) -> ReceivedAlert:
    return ReceivedAlert(status, LABELS | labels, {"summary": "Rank 17 is late."})


def active(value: str, **labels: str) -> dict[str, Any]:
    """Return an alert as Prometheus reports it."""
    return {"labels": LABELS | labels, "state": "firing", "value": value}


def test_line_is_made_of_the_page() -> None:
    """Job, rank, stage and alert are the page's labels; the cost is that alert's value, or none."""
    others = active("3e+00", rank="3")
    verdict = verdict_of(page(), [others, active("1.134e+01")], after_seconds=47.4)

    assert verdict.line() == (
        "verdict: job=nightly rank=17 stage=backward gpus_lost=11.34 "
        "alert=RankskewStraggler after=47s"
    )
    assert "gpus_lost=nan" in verdict_of(page(), [], after_seconds=1).line()


def test_healthy_line_says_so() -> None:
    """A run in which nobody was named ends with `no straggler`, and how long it was judged."""
    line = Health("nightly", 0.031, 90.2, alert="none", after_seconds=161.8).line()

    assert line == (
        "verdict: job=nightly no straggler gpus_lost=0.03 judged=90s alert=none after=162s"
    )


def test_other_names_are_wrong() -> None:
    """A page for another rank or another stage is wrong; a resolved one or another alert is not."""
    pages = [
        page(),
        page(rank="3"),
        page(stage="data"),
        page(status="resolved", rank="4"),
        page(alertname="RankskewCommunicationBound", rank="5"),
    ]

    assert wrong_names(pages, "17", "backward") == ["rank 3 in backward", "rank 17 in data"]
