"""`rankskew report` as a command: what it prints, and one clear sentence for what it cannot."""

import json
from collections.abc import Mapping, Sequence

import pytest

from rankskew.__main__ import main
from rankskew.report.job import restarts
from tests.rankskew.client.servers import Answer, json_answer, serving
from tests.rankskew.golden import assert_golden
from tests.rankskew.report.fake_history import FakeHistory, Written

Captured = pytest.CaptureFixture[str]
DAY = 86_400.0
AT = 20_000 * DAY
JOB = {"cluster": "eu", "job_id": "llama"}
RANK = {**JOB, "rank": "3", "instance": "n1:9917"}
WEEK = [(AT - 7 * DAY, AT)]
LATE = [(AT - 7200, AT - 3600)]
FIRES = {"alertname": "RankskewStraggler", "severity": "warning", "cause": "input"}
# Those with a longer name come first: an expression may have both.
ALERTS: Mapping[str, Sequence[Written]] = {
    "job:rankskew_job:group": [({}, WEEK, 1.0)],
    "gpu_hour_price:value": [({**RANK, "alert": "RankskewStraggler"}, LATE, 6.0)],
    "and on (cluster, job_id, rank, instance) ALERTS": [
        ({**RANK, "alert": "RankskewStraggler"}, LATE, 2.0)
    ],
    "ALERTS": [({**FIRES, **RANK}, LATE, 1.0)],
}
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


def report(url: str, *arguments: str) -> int:
    return main(["report", *arguments, "--prometheus", url, "--at", f"{AT}"])


def printed(
    capsys: Captured, past: Mapping[str, Sequence[Written]], *arguments: str, status: int = 0
) -> str:
    """Return what a report on *past* prints, to stdout or, if it fails, to stderr."""
    with FakeHistory(past).serve() as url:
        assert report(url, *arguments) == status
    said = capsys.readouterr()
    return said.err if status else said.out


# ---- What it prints ------------------------------------------------------------------------------


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
        (JOB, [(AT - 7200, AT - 4200)], 9000.0),
        (JOB, [(AT - 4200, AT - 3600)], 5.0),
    ],
    "job:rankskew_state:info": [],
    "job:rankskew_gpu_hour_price:value": [],
}


def test_texts_are_the_golden_ones(capsys: Captured) -> None:
    """Incidents and their cost come first; losses are split, and add up.

    It says which step it took; a period may be longer than time.
    """
    no_price = {**ALERTS, "gpu_hour_price:value": []}
    week = ("--incidents", "--since", "7d")
    texts = {
        "incidents": printed(capsys, ALERTS, *week),
        "incidents, Markdown, without a price": printed(capsys, no_price, *week, "--markdown"),
        "incidents, long": printed(capsys, ALERTS, "--incidents", "--since", "1000y"),
        "job": printed(capsys, RUNS, "--job", "llama"),
        "job that hung": printed(capsys, HUNG, "--job", "llama"),
    }
    assert_golden("report", texts)


def test_programs_get_numbers(capsys: Captured) -> None:
    """The losses of a job add up."""
    said = json.loads(printed(capsys, ALERTS, "--incidents", "--since", "7d", "--json"))
    (incident,) = said["incidents"]
    job = json.loads(printed(capsys, HUNG, "--job", "llama", "--json"))

    assert (incident["gpu_hours"], incident["dollars"]) == (2.0, 6.0)
    assert (said["gpu_hours_lost"], said["dollars_lost"]) == (2.0, 6.0)
    lost = sum(loss["gpu_hours"] for loss in job["losses"])
    assert job["gpu_hours_lost"] == pytest.approx(lost)
    assert lost == pytest.approx(4 / 3 + 0.5 + 2.0 + 0.25)
    assert len(job["restarts"]) == 1


# ---- What it cannot ------------------------------------------------------------------------------


BEATING = [(JOB, LATE, 8.0), ({**JOB, "cluster": "us"}, LATE, 8.0)]
SINCE = "from 2024-10-03 00:00 to 2024-10-04 00:00 UTC;"


@pytest.mark.parametrize(
    ("past", "what", "told"),
    [
        (
            {},
            ("--job", "llama"),
            f"no job was seen {SINCE} rankskew report --incidents says what fired",
        ),
        (
            {},
            ("--incidents",),
            f"no rules of Rankskew were evaluated {SINCE} rankskew files DIR writes",
        ),
        (
            {"job:rankskew_ranks_beating:sum": BEATING},
            ("--job", "llama"),
            "several clusters have a job 'llama'; give one: --cluster 'eu'\n",
        ),
    ],
)
def test_what_there_is_nothing_of_is_one_sentence(
    capsys: Captured, past: Mapping[str, Sequence[Written]], what: tuple[str, ...], told: str
) -> None:
    """With the period that was looked at; nothing to report is not a report of nothing."""
    said = printed(capsys, past, *what, "--since", "1d", status=2)

    assert said.startswith(f"rankskew: {told}")
    assert said.count("\n") == 1


@pytest.mark.parametrize("what", [("--incidents",), ("--job", "llama")])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((403, "text/plain", b"no"), "refuses us (403 Forbidden): give a token or password with"),
        ((200, "text/html", b"<html>"), "answers, but it is not a Prometheus."),
        ((503, "text/plain", b""), "answers 503 Service Unavailable."),
        (json_answer({"status": "error", "error": "bad"}, 422), "cannot answer a query: bad."),
    ],
    ids=["permission", "not a Prometheus", "overloaded", "refused query"],
)
def test_server_that_cannot_tell_is_one_sentence(
    capsys: Captured, what: tuple[str, ...], answer: Answer, words: str
) -> None:
    with serving(lambda path, form: answer) as url:
        assert report(url, *what) == 2

    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("ages", "when"),
    [
        # The oldest process is younger than the last look: all processes are new.
        ([(0.0, 100.0), (60.0, 160.0), (120.0, 30.0), (600.0, 20.0), (660.0, 80.0)], [120, 600]),
        # A node was lost: the oldest of the others may be a little younger, or much.
        ([(0.0, 1000.0), (60.0, 1060.0), (120.0, 1090.0), (180.0, 500.0)], []),
    ],
)
def test_restart_is_seen_by_the_age_of_the_oldest_process(
    ages: list[tuple[float, float]], when: list[float]
) -> None:
    assert restarts(ages, 15) == when
