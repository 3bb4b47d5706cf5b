"""Every query is valid, reads series that exist, and shows something when there is something."""

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from dashboards.detail import collectors
from exporter.scrape.levels import ALL, LEVELS, PARTS, Level
from fleet_simulator.plan import tour
from generators import alert_rules
from tests.alerts.promtool import RULES, Answers, answers, promtool
from tests.dashboards.dashboard_files import Target, metric_names, targets
from tests.fleet_simulator.scraped import SCRAPE_SECONDS, input_series

pytestmark = pytest.mark.e2e

END_SECONDS: Final = 4 * 60
SAMPLES: Final = END_SECONDS // SCRAPE_SECONDS + 1
# The rank that the faults of the simulated jobs are about.
RANK = "6"
# The first row has a test of its own, test_first_screen.py.
FIRST_ROW = {"State", "GPUs lost", "Who", "Since", "Step", "Judged", "Alerts"}
TARGETS = [
    target
    for target in targets()
    if target.dashboard == "rank" or (target.dashboard == "job" and target.panel not in FIRST_ROW)
]


def test_every_query_is_promql(tmp_path: Path) -> None:
    """Prometheus 2.42 parses every query once its variables are substituted."""
    rules = [
        {"record": f"query:{number}", "expr": target.substituted("job")}
        for number, target in enumerate(targets())
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = promtool("check", "rules", str(path))

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_series_exists() -> None:
    """A query reads only what a collector exposes or a shipped rule records."""
    recorded = {rule.get("record") for rule in alert_rules.all_rules()}
    read = {name for target in targets() for name in metric_names(target.expr)}

    assert read
    assert read - collectors().keys() - recorded == set()


def test_first_error_of_a_kind_is_drawn(tmp_path: Path) -> None:
    """A counter that first appears with its first error is drawn, despite no earlier sample."""
    parts = {name for name, (*_, level) in PARTS.items() if level is Level.NOT_ZERO}
    late = {name for name, level in LEVELS.items() if level is Level.NOT_ZERO} | parts
    counters = {name for name in late if name.endswith("_total")} | {
        "rankskew_gpu_xid_errors_total"
    }
    rules = [
        Target(path.stem, rule.get("record") or rule["alert"], "", rule["expr"])
        for path in RULES
        for rule in alert_rules.rules(path)
    ]
    read = [t for t in [*targets(), *rules] if metric_names(t.expr) & counters]
    exprs = {target.substituted("j") for target in read}
    growing = {expr for expr in exprs if re.search(r"rate|increase", expr)}
    labels = '{job_id="j",rank="0",gpu="0",type="uncorrected",xid="79",result="invalid"}'
    series = [{"series": f"{name}{labels}", "values": "_x8 1x20"} for name in counters]

    assert {target.dashboard for target in read} == {"node", "self"}
    assert growing
    times = begun, later = 8.0 * SCRAPE_SECONDS, 24.0 * SCRAPE_SECONDS
    found = answers(tmp_path, series, ((expr, at) for expr in exprs for at in times))
    assert {expr for expr in exprs if found[expr, begun]} == exprs
    assert {expr for expr in exprs if found[expr, later]} == exprs - growing


# ---- What simulated jobs show --------------------------------------------------------------------


def queries(letters: str, *panels: str) -> set[tuple[str, str]]:
    """Return single queries, by panel and letter."""
    return {(panel, letter) for panel in panels for letter in letters}


TABLE = "Who the job waits for"
# What only a late rank draws:
LATE = {
    ("annotation Alerts", ""),
    *queries("A", "Alerts", "GPUs lost over time", "In its code", "Now"),
    *queries("AB", "Late"),
    *queries("ABCD", "Why late"),
    *queries("B", "Ranks over time"),
    *queries("BCDEF", TABLE),
}
# Lines of late ranks beside their peers, where the peers have lines too; the dashboard of a rank
# draws the rank as its line A, late or not.
LATE_LINES = queries("A", "Own work per step", "Wait per step")
# What only a rank that keeps up shows:
WELL = {*queries("B", "Alerts"), *queries("E", "Now")}
# What only a job that hangs shows:
STUCK = {
    *queries("D", "GPUs lost over time"),
    *queries("C", "Ranks over time"),
    *queries("B", "Now"),
}
# Queries for rarer cases: a job that starts, loses ranks, restarts, ends, becomes slower as a
# whole, is not judged, does not compare its steps, or has many late ranks; a throttled GPU.
RARE = {
    *(("annotation Changes", ""), ("annotation Lifecycle", ""), ("annotation Restarts", "")),
    *queries("A", "GPU clocks throttled"),
    *queries("C", "Step time and slowdown", "Where it runs"),
    *queries("CDF", "Now"),
    *queries("BCEIJ", "GPUs lost over time"),
    *queries("DEFG", "Ranks over time"),
}
# The queries without a result, by job; for the hung job only a few queries are checked.
EMPTY = {
    "loader": {*STUCK, *RARE, *WELL},
    "healthy": {*STUCK, *RARE, *LATE, *LATE_LINES},
    "hang": queries("D", "Ranks over time"),
}
ASKED = {
    "loader": TARGETS,
    "healthy": TARGETS,
    "hang": [
        target
        for target in TARGETS
        if (target.panel, target.ref) in {*STUCK, *EMPTY["hang"], *queries("ABDEF", TABLE)}
    ],
}


def shows_nothing(target: Target, job_id: str) -> bool:
    """Whether *target* has no result for that job."""
    query = target.panel, target.ref
    if target.dashboard == "rank" and query in LATE_LINES:
        return False
    return query in EMPTY[job_id]


def sent(target: Target, job_id: str, cluster: str = ".*") -> tuple[str, float]:
    """Return the query of *target* for a job of one *cluster*, or of all, and when it is asked."""
    return target.substituted(job_id, rank=RANK, cluster=cluster), END_SECONDS


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What all queries here yield. The late job runs in two clusters under one name."""
    folder = tmp_path_factory.mktemp("queries")

    def exposed(job_id: str) -> list[dict[str, str]]:
        plans = [plan for plan in tour() if plan.job_id == job_id]
        return input_series(plans, folder / job_id, SAMPLES, "a", ALL)

    late = exposed("loader")
    twin = [each | {"series": each["series"].replace('r="a"', 'r="b"')} for each in late]
    others = [each for job_id in ("healthy", "hang") for each in exposed(job_id)]
    asked = [sent(target, job_id) for job_id, asked in ASKED.items() for target in asked]
    asked += [sent(target, "loader", "a") for target in TARGETS]
    return answers(folder, [*late, *twin, *others], asked)


@pytest.mark.parametrize("job_id", EMPTY)
def test_query_shows_something_when_there_is_something(drawn: Answers, job_id: str) -> None:
    """A query returns data for a job that has what the panel is about, and none otherwise."""
    empty = {target for target in ASKED[job_id] if not drawn[sent(target, job_id)]}

    assert empty == {target for target in ASKED[job_id] if shows_nothing(target, job_id)}


def test_jobs_of_one_name_in_two_clusters_do_not_meet(drawn: Answers) -> None:
    """Where one data source holds two clusters, the choice of one shows only its job."""
    shown = {target: drawn[sent(target, "loader", "a")] for target in TARGETS}

    assert {t for t in TARGETS if not shown[t]} == {
        t for t in TARGETS if shows_nothing(t, "loader")
    }
    clusters = {labels.get("cluster", "a") for found in shown.values() for labels, _ in found}
    assert clusters == {"a"}


def test_late_rank_is_late_in_its_stage_only(drawn: Answers) -> None:
    """A rank with a planted delay in data exceeds its peers in that stage and in no other."""
    late, peers = (
        {labels["stage"]: value for labels, value in drawn[sent(target, "loader", "a")]}
        for target in TARGETS
        if target.panel == "Beside its peers, by stage" and target.ref in "AB"
    )

    assert {stage for stage, seconds in late.items() if seconds - peers[stage] > 0.1} == {"data"}
