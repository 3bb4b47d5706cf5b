"""All views of the tour of `rankskew simulate` agree with the documentation and each other.

A real Prometheus scrapes the tour. The right finding for each job is listed here.
"""

import contextlib
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import pytest

from dashboards.panels import STATES
from devstack.parts import ROOT, PrometheusProcess, SimulationProcess
from devstack.process import get, wait_for
from exporter.live import states
from fleet_simulator.faults import BY_NAME, Scope
from fleet_simulator.plan import node_name, tour
from rankskew.client.prometheus import Prometheus
from rankskew.commands import diagnose
from rankskew.top.from_prometheus import read_fleet
from tests.dashboards.dashboard_files import (
    JSON_FILES,
    Target,
    dashboard_panels,
    named,
    panels,
    substituted,
)
from tests.e2e.conftest import fast_rules
from tests.fleet_simulator.test_fleet import CAUSES

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

# A scrape that is missed changes a state: on a busy machine a node's page takes seconds.
INTERVAL_SECONDS: Final = 6.0
PATIENCE_SECONDS: Final = 420.0
PLACES: Final = {plan.job_id: plan for plan in tour()}
MISSING: Final = "job_reason:rankskew_not_judgeable:bool{job_id='down'}"
# Money is told only where somebody has set a price, and that is for one cluster.
PRICE: Final = """\
groups:
  - name: price
    rules:
      - record: rankskew:gpu_hour_price:override
        labels: {cluster: simulated}
        expr: vector(2.5)
"""
FOUND, BALANCED, CANNOT_TELL = 1, 0, 2
# The only late rank of each job of the tour, and the ranks of its node.
LATE_RANK: Final = 6
LATE_NODE: Final = (4, 5, 6, 7)


@dataclass(frozen=True)
class Expected:
    """The right finding: *what* with its *detail*, and a part of the *first* action's text.

    A finding must name exactly *ranks*. A field that is empty or None is not checked.
    """

    status: int
    what: str = ""
    detail: str | None = None
    ranks: tuple[int, ...] = ()
    stage: str | None = None
    first: str = ""


def _late(job_id: str, stage: str, first: str) -> Expected:
    """Expect the cause that every exporter of a simulated fleet has to find."""
    ranks = LATE_NODE if BY_NAME[job_id].scope is Scope.NODE else (LATE_RANK,)
    return Expected(FOUND, *CAUSES[job_id], ranks, stage, first)


def _hung(stage: str) -> Expected:
    return Expected(FOUND, "hung", "", (LATE_RANK,), stage, "py-spy dump --pid 20006")


# Of jobs with a late rank, which are named after its fault: the stage, and what to do first.
LATE: Final = (
    ("loader", "data", "pgrep -P 20006"),
    ("storage", "data", "iostat"),
    ("thermal", "backward", "CLOCK,PERFORMANCE,TEMPERATURE"),
    ("pcie", "h2d", "Link Info"),
    ("aer", "h2d", "grep -i replay"),
    ("weaklink", "backward", "nvidia-smi nvlink -e"),
    ("pstate", "backward", "PERFORMANCE,CLOCK"),
    ("decoder", "data", "nvidia-smi dmon"),
    ("foreign", "backward", "find its owner with `nvidia-smi -i"),
    ("cpu", "forward", "raise the CPU limit"),
    ("gc", "other", "py-spy dump --pid 20006"),
    ("batches", "backward", "how long its samples are"),
    ("checkpoint", "checkpoint", "py-spy dump --pid 20006"),
    ("sleep", "data", "py-spy dump --pid 20006"),
    ("lock", "other", "py-spy dump --pid 20006"),
    ("worker", "data", "pgrep -P 20006"),
    ("mount", "data", "py-spy dump --pid 20006"),
    ("node", "forward", "top"),
    ("network", "forward", "ip -s link"),
    ("disk", "data", "iostat"),
    ("nfs", "data", "nfsiostat"),
    ("lustre", "data", "lctl get_param"),
    ("cpuheat", "forward", "turbostat"),
    ("cpuclock", "forward", "scaling_governor"),
    ("numa", "forward", "numastat"),
    ("congestion", "forward", "port_xmit_wait"),
    ("retransmits", "data", "ss -tinp"),
    ("slowport", "forward", "ibstat"),
    ("nojoin", "data", "pgrep -P 20006"),
)
TOUR: Final = {
    **{job_id: _late(job_id, stage, first) for job_id, stage, first in LATE},
    "healthy": Expected(BALANCED),
    "rotating": Expected(FOUND, "rotating", stage="backward", first="work of the ranks"),
    "pause": Expected(FOUND, "pause", first="look at what its log"),
    "hang": _hung("data"),
    "frozen": _hung("frozen"),
    "oom": _hung("frozen"),
    "lost": _hung("backward"),
    "deadlock": Expected(FOUND, "hung_together", first="py-spy dump"),
    "killed": Expected(FOUND, "ranks_silent", first="dmesg"),
    "memory": Expected(FOUND, "gpu_memory", ranks=(LATE_RANK,), first="ECC,ROW_REMAPPER"),
    "nvlink": Expected(FOUND, "nvlink_down", ranks=(LATE_RANK,), first="nvlink -s"),
    "filer": Expected(FOUND, "slower", stage="data", first="look at what began"),
    "dry": Expected(FOUND, "shared", first="rankskew_job_stall_ratio"),
    "missing": Expected(FOUND, "ranks_without_probe", ranks=LATE_NODE, first="environ"),
    "nosync": Expected(CANNOT_TELL, "no_sync", first="mark the collective"),
    "off": Expected(CANNOT_TELL, "off", first="rankskew control"),
    "starting": Expected(FOUND, "slow_start", first="py-spy dump"),
    "finished": Expected(CANNOT_TELL, "finished", first="--at"),
    "noprobe": Expected(CANNOT_TELL, "no_probe", first="rank_probe"),
    "stuck": Expected(FOUND, "stands_still", first="py-spy dump"),
    "unused": Expected(FOUND, "unused_gpus", first="compare its ranks"),
    "down": Expected(FOUND, "exporter_down", first="systemctl status rankskew-exporter"),
}


@dataclass(frozen=True)
class Row:
    """What docs/concepts.md says of one state; `…` stands for anything."""

    state: str
    job_id: str
    dashboard: str
    page: str
    top: str
    alert: str


def documented() -> list[Row]:
    """Return the rows of the table in docs/concepts.md: a job for each state."""
    lines = (ROOT / "docs" / "concepts.md").read_text().splitlines()
    head = "| state | fault | job dashboard | live page | `rankskew top` | alert |"
    rows = list(takewhile(lambda line: line.startswith("| "), lines[lines.index(head) :]))[2:]
    return [Row(*(cell.strip() for cell in row.strip("|").split(" | "))) for row in rows]


@dataclass(frozen=True)
class Tour:
    """The simulated fleet, and the Prometheus that scrapes it."""

    simulation: SimulationProcess
    prometheus: PrometheusProcess

    def live(self, job_id: str) -> dict[str, Any]:
        """Return what the page of a node says of its job: of the node with the fault, if it can."""
        plan = PLACES[job_id]
        node = plan.first_node + (0 if job_id in ("missing", "down") else plan.nodes - 1)
        page = get(f"{self.simulation.url}/node/{node_name(node)}/api/v1/live")
        (job,) = json.loads(page)["jobs"]
        verdict: dict[str, Any] = job["verdict"]
        return verdict

    def troubles(self) -> dict[str, object]:
        """Return the jobs whose state, or whose late rank's cause, is not right yet.

        Last to settle is the reason for the job with an exporter that is down: missing ranks.
        """
        # A rank of it dies after a minute, and before it hangs its state changes all the time.
        expected = {row.job_id: row.state for row in documented()} | {"oom": states.HUNG}
        query = self.prometheus.query
        found = query("job:rankskew_state:info")
        shown = {each.labels["job_id"]: each.labels["state"] for each in found}
        causes = {
            each.labels["job_id"]: (each.labels["cause"], each.labels.get("detail", ""))
            for each in query(f'rankskew_late_cause_info{{rank="{LATE_RANK}"}}')
        }
        wrong: dict[str, object] = {
            job: (shown.get(job), causes.get(job))
            for job in PLACES
            if shown.get(job) != expected.get(job, shown.get(job))
            or causes.get(job) != CAUSES.get(job, causes.get(job))
        }
        return wrong | ({} if query(MISSING) else {"down": MISSING})


FIRST_ROW: Final = ("State", "GPUs lost", "Who", "Judged")
each_row = pytest.mark.parametrize("row", documented(), ids=lambda row: row.state)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    """The tour, with all series that a dashboard shows, once it has settled.

    That is once every job has its state, and every late rank its cause.
    """
    directory = tmp_path_factory.mktemp("tour")
    rules = fast_rules(directory / "rules")
    (rules / "price.yaml").write_text(PRICE)
    simulation = SimulationProcess(directory / "simulation", ["--series.detail", "all"])
    prometheus = PrometheusProcess(
        directory,
        discovery=simulation.discovery,
        rules=rules,
        interval_seconds=INTERVAL_SECONDS,
        scrapes_itself=True,
    )
    with simulation, prometheus:
        found = Tour(simulation, prometheus)
        wait_for(lambda: None if found.troubles() else True, PATIENCE_SECONDS, 2.0)
        assert not (troubles := found.troubles()), troubles
        # What a group of rules makes of another one's records is an evaluation later.
        time.sleep(INTERVAL_SECONDS)
        yield found


def test_every_state_and_fault_has_an_expectation() -> None:
    """A new fault needs a line, and a state a row of the page."""
    assert [row.state for row in documented()] == list(STATES)
    assert set(TOUR) == set(PLACES)


# ---- What the documentation promises -------------------------------------------------------------


def matches(promised: str, said: str) -> bool:
    """Say whether *said* is what was *promised*."""
    return re.fullmatch(re.escape(promised).replace("…", ".+"), said) is not None


def names_shown(prometheus: PrometheusProcess, title: str, job_id: str) -> list[str]:
    """Return the names in the panel *title* of the dashboard of a job."""
    (panel,) = (panel for panel in dashboard_panels("job") if panel["title"] == title)
    return [
        named(target.get("legendFormat", ""), series.labels)
        for target in panel["targets"]
        for series in prometheus.query(substituted(target["expr"], job_id))
    ]


@each_row
def test_views_say_what_is_promised(fleet: Tour, row: Row) -> None:
    """The first row of the job's dashboard, the live page of a node, and `rankskew top`.

    The page cannot have the state exporter_down, of another node.
    """
    names = [names_shown(fleet.prometheus, title, row.job_id) for title in FIRST_ROW]
    # What it costs depends on the price.
    state, *said = [" ".join(n for n in each if not n.endswith("US$/h")) or "–" for each in names]
    said = [STATES[state][0], *said]
    assert matches(row.dashboard, " / ".join(said)), said

    verdict = fleet.live(row.job_id)
    assert matches(row.page, verdict["sentence"]), verdict["sentence"]
    assert verdict["state"] == ("healthy" if row.state == "exporter_down" else row.state)

    jobs = {each.job_id: each for each in read_fleet(Prometheus(fleet.prometheus.url)).jobs}
    job = jobs[row.job_id]
    where = f", {job.culprit[0]} · {job.culprit[1]}" if job.culprit else ""
    assert matches(row.top, STATES[job.state][0] + where), job


@each_row
def test_alert(fleet: Tour, row: Row) -> None:
    """The promised alert is firing, or waits for its time to pass, and no other pages anybody."""
    node = f"sim-{PLACES[row.job_id].first_node + 1:02}:9917"
    labels = [alert["labels"] for alert in fleet.prometheus.active_alerts()]
    active = [
        (each["alertname"], each["severity"])
        for each in labels
        if each.get("job_id") == row.job_id or each.get("instance") == node
    ]
    pages = {name for name, severity in active if severity != "info"}

    assert row.alert in {name for name, _ in active} or row.alert == "–"
    # Nobody hears of the ranks of a node whose exporter is down.
    also = {"RankskewRanksMissing"} if row.state == "exporter_down" else set()
    assert pages <= {row.alert} | also, active


# ---- What is said of each fault ------------------------------------------------------------------


@pytest.mark.parametrize("job_id", TOUR)
def test_diagnose_names_rank_stage_cause_and_what_to_do_first(fleet: Tour, job_id: str) -> None:
    """`rankskew diagnose` gives the right finding, and exits with the status for it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        asked = ["--prometheus", fleet.prometheus.url, "--job", job_id, "--json"]
        status = diagnose.run(asked)
    document = json.loads(printed.getvalue())

    assert wrong_parts(TOUR[job_id], document["findings"]) == [], document
    assert status == TOUR[job_id].status


def wrong_parts(expected: Expected, findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which parts of the answer are wrong.

    The first finding counts, and for the late ranks all that name any.
    """
    first = findings[0] if findings else {}
    cause = first.get("cause") or {}
    late = [each for each in findings if each["cause"] is not None] or findings[:1]
    ranks = {rank for each in late for rank in each["ranks"]}
    right = {
        "rank": not expected.ranks or ranks == set(expected.ranks),
        "stage": not expected.stage or first.get("stage") == expected.stage,
        "cause": not expected.what or first.get("what") == expected.what,
        "detail": expected.detail is None or cause.get("detail", "") == expected.detail,
        "first action": expected.first in (first.get("first") or ""),
    }
    return [part for part, is_right in right.items() if not is_right]


# ---- Dashboards ----------------------------------------------------------------------------------

# What nothing in the tour has; the tests of tests/dashboards show the first six.
EMPTY: Final = {
    # More than two late ranks, a single silent or unseen one, a hang without any other reason.
    ("job", "Who", "C"),
    ("job", "Who", "E"),
    ("job", "Who", "H"),
    ("job", "Since", "C"),
    ("job", "Judged", "C"),
    ("rank", "Now", "C"),
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


def is_seen(prometheus: PrometheusProcess, expr: str) -> bool | None:
    """Say whether *expr* has a result, or had one: a process is killed in the first minute."""
    earlier = f"last_over_time(({expr})[15m:15s])"
    return bool(prometheus.query(expr) or prometheus.query(earlier)) or None


@pytest.mark.parametrize("path", JSON_FILES, ids=lambda path: path.stem)
def test_every_query_shows_something_somewhere(fleet: Tour, path: Path) -> None:
    """Each query of each panel runs on a real Prometheus, and has a result for some job."""
    # A GPU that is read twice, and an exporter that has just gone.
    for rare in ('rankskew_gpu_fault{fault="nvlink"}', "up == 0"):
        assert wait_for(partial(is_seen, fleet.prometheus, rare), PATIENCE_SECONDS, 2.0), rare
    instances = {job_id: f"sim-{plan.first_node + 1:02}:9917" for job_id, plan in PLACES.items()}
    empty = set()
    for panel in panels(path):
        for target in panel["targets"]:
            query = Target(path.stem, panel["title"], target["refId"], target["expr"])
            asked = (
                query.substituted(job_id, instance=node, rank=str(LATE_RANK))
                for job_id, node in instances.items()
            )
            if not any(is_seen(fleet.prometheus, expr) for expr in asked):
                empty.add((path.stem, panel["title"], target["refId"]))

    assert empty - EMPTY == set()
