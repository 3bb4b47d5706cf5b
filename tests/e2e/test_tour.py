"""Every view says what the documentation promises, and what the others say, in every state."""

import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from dashboards.panels import STATES
from devstack.parts import PrometheusProcess
from devstack.process import wait_for
from exporter.vocabulary.words import CAUSES
from rank_probe.wire.stages import STAGES
from rankskew.client.fetch import Trouble
from rankskew.diagnose.advice import advice, situations
from tests.dashboards.dashboard_files import JSON_FILES, Target, panels
from tests.dashboards.shown import shown
from tests.e2e.diagnosed import TOUR, ask, wrong_parts
from tests.e2e.tour import (
    FOUND,
    FOUND_ON_NODE,
    LATE_RANK,
    PATIENCE_SECONDS,
    PLACES,
    Row,
    Tour,
    documented,
)
from tests.e2e.views import ALERT, Answers, ask_all, sighted

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# Views look at a job one after the other, and its figures are noisy: 2 % every five seconds.
NEAR: Final = 0.1
NEAR_GPUS: Final = 0.1
MOMENTS: Final = 3
MOST_MOMENTS: Final = 10
# For so long, a scrape that is missed changes what the rules record.
TROUBLED_SECONDS: Final = 30.0
MISSED: Final = "min_over_time(up[{0:.0f}s]) == 0 < max_over_time(up[{0:.0f}s])"
BETWEEN_SECONDS: Final = 15.0
FIRST_ROW: Final = ("State", "GPUs lost", "Who", "Judged")


def matches(promised: str, said: str) -> bool:
    """Say whether *said* is what was *promised*."""
    return re.fullmatch(re.escape(promised).replace("…", ".+"), said) is not None


def _wait_for_rare_faults(prometheus: PrometheusProcess) -> None:
    """Wait for a GPU that is read twice, and an exporter that has just gone."""
    for rare in (
        'rankskew_gpu_fault{fault="nvlink"}',
        "up == 0",
    ):
        found = wait_for(partial(_some, prometheus, rare), PATIENCE_SECONDS, 2.0)
        assert found, f"{rare} is empty"


def _some(prometheus: PrometheusProcess, expression: str) -> bool | None:
    return True if prometheus.query(expression) else None


def test_every_simulated_fault_has_an_expectation() -> None:
    """A new fault needs a line, with causes and situations that there are."""
    assert set(TOUR) == set(PLACES)
    for expected in TOUR.values():
        assert set(expected.what) <= {*advice(), *situations()}
        assert expected.stage in (None, "frozen", *STAGES)


def test_documentation_has_every_state() -> None:
    """The table has one row for each state, in order of urgency."""
    assert [row.state for row in documented()] == list(STATES)


@pytest.mark.parametrize("row", documented(), ids=lambda row: row.state)
def test_first_row_of_the_job_dashboard(fleet: Tour, row: Row) -> None:
    """State, loss, culprit and coverage are the promised ones."""
    names = [
        [each.name for each in shown(fleet.prometheus, "job", title, row.job_id)]
        for title in FIRST_ROW
    ]
    # What it costs depends on the price.
    state, *said = [" ".join(n for n in each if not n.endswith("US$/h")) or "–" for each in names]
    said = [STATES[state][0], *said]

    assert matches(row.dashboard, " / ".join(said)), said


@pytest.mark.parametrize("row", documented(), ids=lambda row: row.state)
def test_live_page(fleet: Tour, row: Row) -> None:
    """The page of a node says the promised sentence, and has the state but for exporter_down."""
    verdict = fleet.live(row.job_id)

    assert matches(row.page, verdict["sentence"]), verdict["sentence"]
    assert verdict["state"] == ("healthy" if row.state == "exporter_down" else row.state)


@pytest.mark.parametrize("row", documented(), ids=lambda row: row.state)
def test_terminal_view(fleet: Tour, row: Row) -> None:
    """`rankskew top` has the state in words, and the rank and stage if there is one to look at."""
    command = [sys.executable, "-m", "rankskew", "top", "--once", "--json"]
    command += ["--prometheus", fleet.prometheus.url]
    answer = subprocess.run(command, capture_output=True, check=True)
    (job,) = (job for job in json.loads(answer.stdout)["jobs"] if job["job_id"] == row.job_id)
    culprit = job["culprit"]
    where = f", {culprit['rank']} · {culprit['stage']}" if culprit else ""

    assert matches(row.top, STATES[job["state"]][0] + where), job


@pytest.mark.parametrize("row", documented(), ids=lambda row: row.state)
def test_alert(fleet: Tour, row: Row) -> None:
    """The promised alert is firing, or waits for its time to pass; if none is promised, none is."""
    of_job = [
        alert["labels"]["alertname"]
        for alert in fleet.prometheus.active_alerts()
        if row.job_id == alert["labels"].get("job_id")
    ]
    node = f"sim-{PLACES[row.job_id].first_node + 1:02}:9917"
    of_node = [
        alert["labels"]["alertname"]
        for alert in fleet.prometheus.active_alerts()
        if node == alert["labels"].get("instance")
    ]

    if row.alert == "–":
        assert not of_job
    else:
        assert row.alert in {*of_job, *of_node}


@pytest.mark.parametrize("fault", FOUND)
def test_first_row_alone_names_rank_stage_loss_and_cause(fleet: Tour, fault: str) -> None:
    """Somebody who is paged needs no other row to know what is the matter."""
    stage, cause, _ = FOUND[fault]
    (who,) = shown(fleet.prometheus, "job", "Who", fault)
    lost, cost = shown(fleet.prometheus, "job", "GPUs lost", fault)

    assert who.name == f"rank {LATE_RANK} · {stage} · {CAUSES[cause].short}"
    assert re.fullmatch(r"[12]\.\d of 8|[12] of 8", lost.name)
    assert lost.value > 0.05
    assert re.fullmatch(r"\d+(\.\d+)? US\$/h", cost.name)


# One of each kind of answer.
DIAGNOSED: Final = (
    "healthy",
    "loader",
    "thermal",
    "node",
    "rotating",
    "filer",
    "hang",
    "nosync",
    "down",
)


@pytest.mark.parametrize("job_id", DIAGNOSED)
def test_diagnose_names_rank_stage_cause_and_what_to_do_first(fleet: Tour, job_id: str) -> None:
    """`rankskew diagnose` says what is right, and its exit status is that of its answer."""
    document = ask("--prometheus", fleet.prometheus.url, "--job", job_id)

    assert wrong_parts(TOUR[job_id], document) == [], document


@pytest.mark.parametrize("fault", FOUND_ON_NODE)
def test_slow_node_has_the_cause_that_all_of_its_ranks_have(fleet: Tour, fault: str) -> None:
    """The node is named once, in the state and in the alert."""
    assert fleet.states()[fault] == "slow_node"
    assert {
        alert["labels"]["cause"]
        for alert in fleet.prometheus.active_alerts()
        if alert["labels"].get("job_id") == fault
    } == {FOUND_ON_NODE[fault][1]}


def test_fleet_shows_the_most_urgent_job_first(fleet: Tour) -> None:
    """The figures add up over the jobs, and the hung jobs are the dearest."""
    (lost, *_) = shown(fleet.prometheus, "fleet", "GPUs lost now", "")
    by_job = fleet.prometheus.query("job:rankskew_gpus_lost:sum")
    hung = {job_id for job_id, state in fleet.states().items() if state == "hung"}
    dearest = sorted(by_job, key=lambda series: -series.value)[: len(hung)]

    assert lost.value == pytest.approx(sum(series.value for series in by_job), rel=0.05)
    assert {series.labels["job_id"] for series in dearest} == hung


# What nothing in the tour has; the tests of tests/dashboards show the first seven.
EMPTY: Final = {
    # More than two late ranks, a single silent or unseen one, a hang without any other reason.
    ("job", "Who", "C"),
    ("job", "Who", "E"),
    ("job", "Who", "H"),
    ("job", "Since", "C"),
    ("job", "Judged", "C"),
    ("rank", "Now", "C"),
    # Throttling is told after five minutes of it.
    ("fleet", "Nodes with trouble", "F"),
    # No port is RoCE.
    ("node", "Retransmits and congestion", "C"),
    # Recorded once an hour.
    *(("fleet", "Nodes that jobs waited for, four weeks", ref) for ref in "ABCD"),
    # The chosen job exists, no job restarts, and Rankskew itself has no trouble.
    ("job", "State", "B"),
    # More late ranks than are drawn one by one.
    ("job", "GPUs lost over time", "B"),
    *(("self", "Oldest GPU reading", ref) for ref in "BC"),
    ("self", "Collectors that fail", "A"),
    ("self", "Collectors that fail", "B"),
    *(("self", "Lost on the way", ref) for ref in "ABCDE"),
}


def _is_seen(prometheus: PrometheusProcess, expr: str) -> bool:
    """Say whether *expr* has a result, or had one: a process is killed in the first minute."""
    earlier = f"last_over_time(({expr})[15m:15s])"
    return bool(prometheus.query(expr) or prometheus.query(earlier))


@pytest.mark.parametrize("path", JSON_FILES, ids=lambda path: path.stem)
def test_every_query_shows_something_somewhere(fleet: Tour, path: Path) -> None:
    """Each query of each panel runs on a real Prometheus, and has a result for some job."""
    _wait_for_rare_faults(fleet.prometheus)
    instances = {job_id: f"sim-{plan.first_node + 1:02}:9917" for job_id, plan in PLACES.items()}
    empty = set()
    for panel in panels(path):
        for target in panel["targets"]:
            query = Target(path.stem, panel["title"], target["refId"], target["expr"])
            asked = [
                query.substituted(job_id, instance=node, rank=LATE_RANK)
                for job_id, node in instances.items()
            ]
            if not any(_is_seen(fleet.prometheus, expr) for expr in asked):
                empty.add((path.stem, panel["title"], target["refId"]))

    assert empty - EMPTY == set()


@pytest.fixture(scope="module")
def moments(fleet: Tour) -> list[dict[str, Answers]]:
    """What each view says of each job of the tour, at three moments at which no scrape is missed.

    A node that is not scraped in time is down to Prometheus, and to nobody else.
    """
    asked: list[dict[str, Answers]] = []
    for _ in range(MOST_MOMENTS):
        began = time.monotonic()
        with suppress(Trouble):  # Where the machine stands still, a view is late as a scrape is.
            answers: dict[str, Answers] = dict(ask_all(fleet))
            # Asking all of them takes long on a busy machine.
            since = TROUBLED_SECONDS + time.monotonic() - began
            if not fleet.prometheus.query(MISSED.format(since)):
                asked.append(answers)
        if len(asked) == MOMENTS:
            break
        time.sleep(BETWEEN_SECONDS)
    assert len(asked) == MOMENTS
    return asked


@pytest.mark.parametrize("job_id", PLACES)
def test_every_view_gives_the_same_answer(moments: list[dict[str, Answers]], job_id: str) -> None:
    """State, ranks, cause and loss are those of all others, at each moment."""
    for each in moments:
        answers = sighted(job_id, each[job_id])
        causes = {answer.cause and answer.cause[0] for answer in answers.values()}
        details = {answer.cause for view, answer in answers.items() if view != ALERT}
        lost = [answer.gpus_lost for answer in answers.values() if answer.gpus_lost is not None]

        said = "\n".join(f"{view}: {answer}" for view, answer in answers.items())
        assert len({answer.state for answer in answers.values()}) == 1, said
        assert len({answer.ranks for answer in answers.values()}) == 1, said
        assert (len(causes), len(details)) == (1, 1), said
        firsts = {answer.first_action for view, answer in answers.items() if view != ALERT}
        assert len(firsts) == 1, said
        assert max(lost) - min(lost) <= max(NEAR_GPUS, NEAR * max(lost)), said
