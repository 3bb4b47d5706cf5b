"""`rankskew report` as a command: what it prints, and one clear sentence for what it cannot."""

import json
import re
from collections.abc import Mapping, Sequence

import pytest

from rankskew.__main__ import main
from tests.rankskew.client.servers import Answer, json_answer, serving
from tests.rankskew.report.fake_history import FakeHistory, Written, loaded

Captured = pytest.CaptureFixture[str]
DAY = 86_400.0
AT = 20_000 * DAY
WEEK = [(AT - 7 * DAY, AT)]
JOB = {"cluster": "eu", "job_id": "llama"}
RANK = {**JOB, "rank": "3", "instance": "n1:9917"}
LATE = [(AT - 7200, AT - 3600)]
FIRES = {"alertname": "RankskewStraggler", "severity": "warning", "cause": "input"}
# Those with a longer name come first: an expression may have both.
ALERTS: Mapping[str, Sequence[Written]] = {
    "job:rankskew_job:group": [({}, WEEK, 1.0)],
    "gpu_hour_price:value": [(RANK, LATE, 6.0)],
    "and on (cluster, job_id, rank, instance) ALERTS": [(RANK, LATE, 2.0)],
    "ALERTS": [({**FIRES, **RANK}, LATE, 1.0)],
    "sum(job:rankskew_world_size": [({}, LATE, 8.0)],
}
RUNS: Mapping[str, Sequence[Written]] = {
    "job:rankskew_world_size:max": [(JOB, LATE, 8.0)],
    "rankskew_late_cause_info": [({**RANK, "stage": "data", "cause": "input"}, LATE, 2.0)],
    "job_kind:rankskew_gpus_lost:sum": [({**JOB, "kind": "persistent"}, LATE, 2.0)],
    "job_stage:rankskew": [],
    "job:rankskew_gpus_lost:sum": [(JOB, LATE, 2.0)],
    "job:rankskew_state:info": [({**JOB, "state": "straggler"}, LATE, 1.0)],
    "job:rankskew_gpu_hour_price:value": [(JOB, LATE, 3.0)],
    "job:rankskew_run_seconds:max": [(JOB, LATE, 5.0)],
    "hang_suspect": [],
    "total": [],
    "ALERTS": [],
    "job:rankskew_ranks_beating:sum": [(JOB, LATE, 8.0)],
}


def report(url: str, *arguments: str) -> int:
    return main(["report", *arguments, "--prometheus", url, "--file", "/nowhere", "--at", f"{AT}"])


def printed(
    capsys: Captured, past: Mapping[str, Sequence[Written]], *arguments: str, status: int = 0
) -> str:
    """Return what a report on *past* prints, to stdout or, if it fails, to stderr."""
    rules = loaded("Straggler", "JobHung")
    with FakeHistory(past, rules=rules).serve() as url:
        assert report(url, *arguments) == status
    said = capsys.readouterr()
    return said.err if status else said.out


# ---- What it prints ------------------------------------------------------------------------------


def test_shadow_has_its_summary_first(capsys: Captured) -> None:
    """Incidents, pages, cost and precision are the first lines."""
    text = printed(capsys, ALERTS, "--shadow", "--since", "7d")

    assert text.splitlines()[1:4] == [
        "1 incident; 1 page would have been sent, 1.0 a week.",
        "The incidents cost 2.00 GPU-hours ($6.00), 25.0% of the 8.00 that ran.",
        "Precision: not known, because nobody has judged an incident yet (1 are open).",
    ]
    assert "Read every 1m, as often as the rules are evaluated." in text
    assert "rank 3 on n1:9917" in text
    assert "RankskewSlowNode" in next(line for line in text.splitlines() if "Not loaded" in line)


@pytest.mark.parametrize("what", [("--shadow", "--since", "7d"), ("--job", "llama")])
def test_without_a_price_no_money_is_spoken_of(capsys: Captured, what: tuple[str, ...]) -> None:
    """A price that nobody has set is none, and a column of dashes says nothing."""
    past = ALERTS if "--shadow" in what else RUNS
    unpriced = {name: [] if "gpu_hour_price" in name else past[name] for name in past}
    text = printed(capsys, unpriced, *what)

    assert "$" in printed(capsys, past, *what)
    assert "$" not in text
    assert "GPU-hours" in text


def test_shadow_names_the_node(capsys: Captured) -> None:
    """An address tells nobody where to go."""
    node = {"cluster": "eu", "instance": "10.0.0.5:9917"}
    past = {
        **ALERTS,
        "ALERTS": [({**FIRES, **RANK, **node}, LATE, 1.0)],
        "last_over_time(rankskew_exporter_build_info": [({**node, "nodename": "gpu-5"}, LATE, 1.0)],
    }
    assert "rank 3 on gpu-5" in printed(capsys, past, "--shadow", "--since", "7d")


def test_shadow_as_json(capsys: Captured) -> None:
    """A program gets numbers, not words."""
    said = json.loads(printed(capsys, ALERTS, "--shadow", "--since", "7d", "--json"))
    (incident,) = said["incidents"]

    assert (incident["gpu_hours"], incident["dollars"], incident["sends"]) == (2.0, 6.0, "page")
    assert (said["gpu_hours_lost"], said["pages_per_week"]) == (2.0, 1.0)
    assert said["precision"]["unjudged"] == 1


def test_shadow_reads_coarsely_what_is_long(capsys: Captured) -> None:
    """It says which step it took, and what that means."""
    text = printed(capsys, ALERTS, "--shadow", "--since", "400d")

    assert "Read every 3m, because every 1m would take too many queries" in text


def test_job_as_text_and_markdown(capsys: Captured) -> None:
    """The loss is split, and the parts are added up."""
    text = printed(capsys, RUNS, "--job", "llama")
    assert text.splitlines()[:3] == [
        "Job llama in eu",
        "8 ranks, 2024-10-03 22:00 to 2024-10-03 23:00 UTC: 1h.",
        "Efficiency 75.0%: 2.00 of 8.00 judged GPU-hours were lost ($6.00 at $3.00 per GPU-hour).",
    ]
    assert "late rank: input       2.00  100.0%  $6.00" in text
    markdown = printed(capsys, RUNS, "--job", "llama", "--markdown")
    assert "| late rank: input | 2.00 | 100.0% | $6.00 |" in markdown
    assert "counters of the ranks are not there" in markdown


# ---- What it cannot ------------------------------------------------------------------------------


def test_unknown_job_is_one_sentence(capsys: Captured) -> None:
    """With the period that was looked at."""
    assert printed(capsys, {}, "--job", "llama", "--since", "1d", status=1) == (
        "rankskew: no job was seen from 2024-10-03 00:00 to 2024-10-04 00:00 UTC; "
        "rankskew report --shadow says what was recorded\n"
    )


def test_job_in_two_clusters_must_be_chosen(capsys: Captured) -> None:
    """Two clusters may have a job of one name."""
    beating = [(JOB, LATE, 8.0), ({**JOB, "cluster": "us"}, LATE, 8.0)]
    said = printed(capsys, {"job:rankskew_ranks_beating:sum": beating}, "--job", "llama", status=1)

    assert said == "rankskew: several clusters have a job 'llama'; give one: --cluster 'eu'\n"


def test_empty_period_is_one_sentence(capsys: Captured) -> None:
    """Nothing to report is not a report of nothing."""
    assert printed(capsys, {}, "--shadow", "--since", "1d", status=1) == (
        "rankskew: no rules of Rankskew were evaluated from 2024-10-03 00:00 to 2024-10-04 00:00 "
        "UTC; rankskew files DIR writes them\n"
    )


@pytest.mark.parametrize("what", [("--shadow",), ("--job", "llama")])
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
    """Permissions, another program, too much work."""
    with serving(lambda path, form: answer) as url:
        assert report(url, *what) == 1

    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("what", [("--shadow",), ("--job", "llama")])
def test_dead_prometheus_is_one_sentence(capsys: Captured, what: tuple[str, ...]) -> None:
    """Nothing listens there."""
    with serving(lambda path, form: (200, "", b"")) as url:
        pass
    assert report(url, *what) == 1

    assert capsys.readouterr().err == f"rankskew: {url} does not answer: Connection refused.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one of the arguments --shadow --job is required"),
        (["--shadow", "--job", "a"], "not allowed with argument"),
        (["--shadow", "--since", "soon"], "'soon' is not a duration"),
        (["--shadow", "--at", "soon"], "'soon' is not a time such as"),
        (["--shadow", "--prometheus", "not a url"], "is not a URL"),
        (["--shadow", "--json", "--markdown"], "not allowed with argument"),
        (["--job", "a", "--html", "a.html"], "unrecognized arguments: --html a.html"),
    ],
)
def test_wrong_usage_ends_with_2(capsys: Captured, arguments: list[str], words: str) -> None:
    """In one line that says what is wrong."""
    assert main(["report", *arguments]) == 2

    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_period_may_be_longer_than_time(capsys: Captured) -> None:
    """It begins when the clocks did."""
    assert "1970-01-01 00:00" in printed(capsys, ALERTS, "--shadow", "--since", "1000y")


def test_page_of_an_earlier_week_is_not_counted_again(capsys: Captured) -> None:
    """Its incident is shown, because it lasts; it pages nobody in this period."""
    lasting = [(AT - 9 * DAY, AT)]
    past = {**ALERTS, "ALERTS": [({**FIRES, **RANK}, lasting, 1.0)]}
    text = printed(capsys, past, "--shadow", "--since", "7d")

    assert text.splitlines()[1] == "1 incident; 0 pages would have been sent, 0.0 a week."
    assert re.search(r"RankskewStraggler +1 .* 0 +0\.0 ", text)
    assert "9d" in next(line for line in text.splitlines() if " rank 3 on " in line)
