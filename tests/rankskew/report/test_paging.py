"""What Alertmanager would send: what is explained is held back, a job's alerts are one page."""

import re

import pytest

from rankskew.report import paging
from rankskew.report.incidents import Firing
from rankskew.report.paging import inhibitions, is_note, pages, sent

JOB = {"cluster": "eu", "job_id": "llama"}


def firing(
    name: str, *spans: tuple[float, float], severity: str = "critical", **labels: str
) -> Firing:
    return Firing({"alertname": f"Rankskew{name}", "severity": severity} | JOB | labels, spans)


def test_what_another_explains_is_not_sent_meanwhile() -> None:
    """A slow node explains its ranks while it fires, and nobody else's."""
    node = firing("SlowNode", (100, 200), instance="n1")
    rank = firing("Straggler", (50, 250), instance="n1", rank="3")
    other = firing("Straggler", (50, 250), instance="n2", rank="9")
    elsewhere = firing("Straggler", (50, 250), instance="n1", rank="3", job_id="bert")

    assert [each.spans for each in sent([rank, node, other, elsewhere])] == [
        [(50, 100), (200, 250)],
        [(100, 200)],
        [(50, 250)],
        [(50, 250)],
    ]


def test_what_goes_to_the_notes_is_no_page() -> None:
    """As the shipped routes say: whatever informs, and a whole job that is slower."""
    told = [
        firing("JobSlower", (0, 100), severity="warning"),
        firing("GpuThrottled", (0, 100), severity="info"),
        firing("Straggler", (500, 600), severity="warning"),
    ]

    assert [is_note(each) for each in told] == [True, True, False]
    assert [page.span for page in pages(told, 0)] == [(500, 600)]


def test_alerts_of_a_job_are_one_page() -> None:
    """As long as one of them fires; infos are no page, and a later one is another."""
    told = [
        firing("Straggler", (0, 100), severity="warning"),
        firing("GpuXid", (90, 200), severity="critical"),
        firing("Straggler", (2000, 2100), severity="warning"),
        firing("RankSlower", (5000, 5100), severity="info"),
        firing("Straggler", (0, 100), severity="warning", job_id="bert"),
    ]
    found = [(page.job_id, page.span, page.severity) for page in pages(told, 600)]

    assert found == [
        ("bert", (0, 100), "warning"),
        ("llama", (0, 200), "critical"),
        ("llama", (2000, 2100), "warning"),
    ]


def test_shipped_inhibitions_are_read() -> None:
    hung = inhibitions()[0]

    assert len(inhibitions()) >= 8
    assert hung.equal == ("cluster", "job_id")
    assert hung.source["alertname"].fullmatch("RankskewJobHung")
    assert hung.target["alertname"].fullmatch("RankskewStraggler")
    assert not hung.target["alertname"].fullmatch("RankskewGpuLost")


def test_matcher_of_another_kind_is_an_error() -> None:
    """One that is not understood must not hold back too much or too little."""
    with pytest.raises(ValueError, match=re.escape('no matcher: alertname!="x"')):
        paging._matchers(['alertname!="x"'])
