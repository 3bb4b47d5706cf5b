"""`rankskew report`: weeks of series become incidents and costs, and one document in words."""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from rankskew.__main__ import main
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus
from rankskew.report.history import MOST_POINTS, MOST_QUERIES, Grid, grid, read_past, spans_of
from rankskew.report.job import restarts
from rankskew.times import merged, moment, seconds
from rankskew.wording import gpu_hours, money
from tests.printed import assert_golden
from tests.rankskew.fake_prometheus import Written, past

Captured = pytest.CaptureFixture[str]
DAY = 86_400.0
AT = 20_000 * DAY
JOB = {"cluster": "eu", "job_id": "llama"}
US = {"cluster": "us"}
EVIL = "<b>|`*_[a](b)"
RANK = {**JOB, "rank": "3", "instance": "n1:9917"}
WEEK = [(AT - 7 * DAY, AT)]
LATE = [(AT - 7200, AT - 3600)]
FIRES = {"alertname": "RankskewStraggler", "severity": "warning", "cause": "input"}
WORSE = {"stage": "forward", "cause": "cpu", "severity": "critical", "peer_group": "pp0"}
HANGS = {"alertname": "RankskewJobHung", "severity": "critical"}
NODE_FIRES = {"alertname": "RankskewGpuXid", "severity": "warning", **JOB}
# Those with a longer name come first: an expression may have both.
ALERTS: Mapping[str, Sequence[Written]] = {
    "job:rankskew_job:group": [({}, WEEK, 1.0)],
    "gpu_hour_price:value": [({**RANK, "alert": "RankskewStraggler"}, LATE, 6.0)],
    "and on (cluster, job_id, rank, instance) ALERTS": [
        ({**RANK, "alert": "RankskewStraggler"}, LATE, 2.0)
    ],
    "ALERTS": [({**FIRES, **RANK}, LATE, 1.0)],
}
# What fires again and again for one rank, node or job is one incident.
FIRED: Sequence[Written] = [
    # Severity, stage and cause may change, and it may pause for less than the gap. The peer
    # group of a rank is no part of it.
    ({**FIRES, **RANK, "stage": "data"}, [(AT - 7200, AT - 6900)], 1.0),
    ({**FIRES, **RANK, **WORSE}, [(AT - 6600, AT - 5400)], 1.0),
    # After a long break it is another, as is that of another rank, job, cluster or node. A name is
    # no markup, and no column.
    ({**FIRES, **RANK}, [(AT - 1800, AT - 900)], 1.0),
    *(
        ({**FIRES, **RANK, name: EVIL}, [(AT - 7200, AT - 6900)], 1.0)
        for name in ("rank", "job_id", "cluster", "instance")
    ),
    # The suspect may change while a job hangs.
    ({**HANGS, **RANK}, [(AT - 3600, AT - 3540)], 1.0),
    ({**HANGS, **RANK, "rank": "12", "instance": "n2:9917"}, [(AT - 3540, AT - 3480)], 1.0),
    # Without a rank it is a GPU, a node, a peer group or the whole job.
    ({**NODE_FIRES, "gpu_uuid": "GPU-1", "instance": "n1:9917"}, LATE, 1.0),
    ({**NODE_FIRES, "instance": "n1:9917"}, LATE, 1.0),
    ({**NODE_FIRES, "peer_group": "pp0"}, LATE, 1.0),
    (NODE_FIRES, LATE, 1.0),
]
RUNS: Mapping[str, Sequence[Written]] = {
    "rankskew_job_change_": [],
    "job:rankskew_world_size:max": [(JOB, LATE, 8.0)],
    "rankskew_late_cause_info": [({**RANK, "stage": "data", "cause": "input"}, LATE, 2.0)],
    "job_kind:rankskew_gpus_lost:sum": [({**JOB, "kind": "persistent"}, LATE, 2.0)],
    "job_stage:rankskew": [],
    "job:rankskew_gpus_lost:sum": [(JOB, LATE, 2.0)],
    "job:rankskew_state:info": [({**JOB, "state": "straggler"}, LATE, 1.0)],
    "job:rankskew_gpu_hour_price:value": [(JOB, LATE, 3.0)],
    "job:rankskew_run_seconds:max": [(JOB, LATE, 5.0)],
    "hang_suspect": [],
    "ALERTS": [],
    "job:rankskew_ranks_beating:sum": [(JOB, LATE, 8.0)],
}
UNSIZED: Mapping[str, Sequence[Written]] = {**RUNS, "job:rankskew_world_size:max": []}
# Fourteen ranks were late; then it hung for ten minutes, and all processes are new.
HUNG: Mapping[str, Sequence[Written]] = {
    **RUNS,
    "rankskew_late_cause_info": [
        ({**RANK, "stage": "data", "rank": str(rank)}, LATE, 0.125) for rank in range(14)
    ],
    "hang_suspect": [({**RANK, "stage": "data"}, LATE, 1.0)],
    "job_kind:rankskew_gpus_lost:sum": [
        ({**JOB, "kind": "hung"}, [(AT - 4200, AT - 3600)], 8.0),
        ({**JOB, "kind": "common"}, LATE, 0.5),
        ({**JOB, "kind": "persistent"}, LATE, 2.0),
        ({**JOB, "kind": "rotating"}, LATE, 0.25),
    ],
    "job_stage:rankskew": [({**JOB, "stage": "forward"}, LATE, 0.125)],
    "job:rankskew_run_seconds:max": [
        (JOB, [(AT - 7200, AT - 4200)], lambda at: at - AT + 16_200),
        (JOB, [(AT - 4200, AT - 3600)], 5.0),
    ],
    "job:rankskew_state:info": [],
    "job:rankskew_gpu_hour_price:value": [],
}


def report(url: str, *arguments: str) -> int:
    return main(["report", *arguments, "--prometheus", url, "--at", f"{AT}"])


def printed(
    capsys: Captured, written: Mapping[str, Sequence[Written]], *arguments: str, status: int = 0
) -> str:
    """Return what a report on the past prints, to stdout or, if it fails, to stderr."""
    with past(written).serve() as url:
        assert report(url, *arguments) == status
    said = capsys.readouterr()
    return said.err if status else said.out


# ---- What it prints ------------------------------------------------------------------------------


def test_texts_are_the_golden_ones(capsys: Captured) -> None:
    """Incidents and their cost come first; losses are split, and add up, also for programs.

    It says which step it took; a period may be longer than time.
    """
    no_price = {**ALERTS, "gpu_hour_price:value": []}
    many = {**ALERTS, "ALERTS": FIRED}
    day = ("--incidents", "--since", "1d")
    texts = {
        "incidents": printed(capsys, ALERTS, *day),
        "many incidents": printed(capsys, many, *day),
        "many incidents, Markdown": printed(capsys, many, *day, "--markdown"),
        "incidents, Markdown, without a price": printed(capsys, no_price, *day, "--markdown"),
        "incidents, long": printed(capsys, ALERTS, "--incidents", "--since", "1000y"),
        "job": printed(capsys, RUNS, "--job", "llama", "--since", "1y"),
        "job that hung": printed(capsys, HUNG, "--job", "llama"),
    }
    # With the period that was looked at: nothing to report is not a report of nothing.
    beating = {"job:rankskew_ranks_beating:sum": [(JOB, LATE, 8.0), (JOB | US, LATE, 8.0)]}
    for name, written, what in (
        ("no job", {}, "--job=llama"),
        ("no rules", {}, "--incidents"),
        ("several clusters", beating, "--job=llama"),
    ):
        texts[name] = printed(capsys, written, what, "--since", "1d", status=2)
    assert_golden("report", texts)
    said = json.loads(printed(capsys, ALERTS, *day, "--json"))
    job = json.loads(printed(capsys, HUNG, "--job", "llama", "--json"))
    (one,) = said["incidents"]
    lost = sum(loss["gpu_hours"] for loss in job["losses"])

    assert (one["gpu_hours"], one["dollars"]) == (2.0, 6.0)
    assert (said["gpu_hours_lost"], said["dollars_lost"]) == (2.0, 6.0)
    assert job["gpu_hours_lost"] == pytest.approx(lost)
    assert lost == pytest.approx(4 / 3 + 0.5 + 2.0 + 0.25)
    assert (job["gpu_hours"], job["unseen_seconds"], len(job["restarts"])) == (8.0, 8880.0, 1)
    assert json.loads(printed(capsys, UNSIZED, "--job", "llama", "--json"))["ranks"] == 0


def test_restart_is_seen_by_the_age_of_the_oldest_process() -> None:
    """It is younger than the last look: all processes are new.

    Where a node was lost, the oldest of the others may be a little younger, or much.
    """
    twice = [(0.0, 100.0), (60.0, 160.0), (120.0, 30.0), (600.0, 20.0), (660.0, 80.0)]
    lost = [(0.0, 1000.0), (60.0, 1060.0), (120.0, 1090.0), (180.0, 500.0)]

    assert restarts(twice, 15) == [120, 600]
    assert restarts(lost, 15) == []


# ---- Weeks of a series, within the limits of Prometheus ------------------------------------------


def test_weeks_are_read_in_few_queries_without_a_gap() -> None:
    """80,640 points are eight queries, none of more than Prometheus allows.

    A year takes a longer step, a whole multiple of the usual one, so that it takes no more queries.
    Two reports, a few seconds apart, read the same times where they overlap; each stands for the
    step that begins there, so the last is not in the future.
    """
    times, year = grid(20_000 * DAY + 7, 20_014 * DAY + 7), grid(0, 365 * DAY)
    one, other = grid(1000, 5000), grid(1037, 5037)
    chunks = list(times.chunks())

    assert (times.step_seconds, len(chunks)) == (15.0, 8)
    assert all((end - begin) / 15 + 1 <= MOST_POINTS for begin, end in chunks)
    assert all(b[0] - a[1] == 15 for a, b in pairwise(chunks))
    assert (chunks[0][0], chunks[-1][1]) == (times.begin, times.end)
    assert year.step_seconds == 120.0
    assert len(list(year.chunks())) <= MOST_QUERIES
    assert grid(0, DAY, 1_000).step_seconds == 90.0
    assert (one.begin, other.begin, one.end, other.end) == (1005, 1050, 4995, 5025)
    assert grid(0, DAY) == Grid(0, DAY - 15, 15.0)


def test_series_go_on_from_query_to_query() -> None:
    """A series of several answers is one, its name left out; each value stands for its step."""
    labels = {"__name__": "x", "rank": "3"}
    prometheus = past({"x": [(labels, [(0, 9_000), (12_000, 1e9)], 2.0)]})
    with prometheus.serve() as url:
        (line,) = read_past(Prometheus(url), "x", Grid(0, 15_000, 1))
    with (
        past({}, most=1, refused="too many samples").serve() as url,
        pytest.raises(Trouble, match="too many samples"),
    ):
        read_past(Prometheus(url), "x", Grid(0, 1_000, 1))

    assert len(prometheus.asked) == 2
    assert line.labels == {"rank": "3"}
    assert spans_of([line], 1) == [(0, 9_000), (12_000, 15_001)]


# ---- Times, spans, amounts and names, as people give and read them -------------------------------

NOW = datetime(2026, 3, 4, 15, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds_ago"),
    [
        *((form, 3300) for form in ("14:05", "14:05:00", "-55m", f"{NOW - 3300:.0f}")),
        *((form, 3300) for form in ("2026-03-04T14:05", "2026-03-04 14:05:00")),
        *((form, 3300) for form in ("2026-03-04T14:05Z", "2026-03-04T15:05+01:00")),
        # A clock time that is still to come was yesterday's.
        ("15:30", 86_400 - 1800),
        ("now", 0),
    ],
)
def test_times_are_read_in_each_form(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds_ago: float
) -> None:
    """Without an offset a time is UTC, wherever one sits."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert moment(text, NOW) == NOW - seconds_ago
    finally:
        monkeypatch.undo()
        time.tzset()


def test_spans_and_amounts() -> None:
    """Spans are joined in any order; a gap that is too long keeps two apart.

    What is not known is not 0, and what is little is not nothing.
    """
    hours = [gpu_hours(each) for each in (None, 0, 0.001, 1.234, 1234.5)]
    dollars = [money(each) for each in (None, 0, 0.001, 1.5, 12345)]

    assert merged([(10, 20), (0, 5), (5, 8), (15, 30)]) == [(0, 8), (10, 30)]
    assert merged([(0, 5), (8, 9), (20, 21)], gap_seconds=3) == [(0, 9), (20, 21)]
    assert seconds([(0, 45), (90, 105)]) == 60
    assert hours == ["–", "0.00", "<0.01", "1.23", "1,234"]
    assert dollars == ["–", "$0.00", "<$0.01", "$1.50", "$12,345"]
