"""Every query is valid, reads series that exist, and shows something when there is something."""

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dashboards.detail import collectors
from exporter.scrape.levels import ALL, LEVELS, PARTS, Level
from fleet_simulator.fleet import Fleet, fleet_app
from fleet_simulator.plan import tour
from tests.alerts.promtool import RULES, answers, promtool
from tests.dashboards.dashboard_files import Target, metric_names, targets
from tests.exporter.asgi import ask
from tests.exporter.node import Clock

SCRAPE_SECONDS: Final = 15
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
    rules = yaml.safe_load_all("---\n".join(path.read_text() for path in RULES))
    recorded = {rule.get("record") for file in rules for g in file["groups"] for rule in g["rules"]}
    read = {name for target in targets() for name in metric_names(target.expr)}

    assert read
    assert read - collectors().keys() - recorded == set()


def with_result(
    folder: Path, series: list[dict[str, str]], exprs: Iterable[str], at_seconds: float
) -> set[str]:
    """Return those of *exprs* that yield anything *at_seconds*, after all rules."""
    asked = [(f"group({expr})", at_seconds) for expr in exprs]
    found = answers(folder, series, asked)
    return {expr.removeprefix("group(")[:-1] for (expr, _), samples in found.items() if samples}


def test_first_error_of_a_kind_is_drawn(tmp_path: Path) -> None:
    """Its count appears with it, so nothing before it is there that it could have grown from."""
    parts = {name for name, (*_, level) in PARTS.items() if level is Level.NOT_ZERO}
    late = {name for name, level in LEVELS.items() if level is Level.NOT_ZERO} | parts
    counters = {name for name in late if name.endswith("_total")} | {
        "rankskew_gpu_xid_errors_total"
    }
    rules = [
        Target(path.stem, rule.get("record", rule.get("alert")), "", rule["expr"])
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    read = [t for t in [*targets(), *rules] if metric_names(t.expr) & counters]
    exprs = {target.substituted("j") for target in read}
    growing = {expr for expr in exprs if re.search(r"rate|increase", expr)}
    labels = '{job_id="j",rank="0",gpu="0",type="uncorrected",xid="79",result="invalid"}'
    series = [{"series": f"{name}{labels}", "values": "_x8 1x20"} for name in counters]

    assert {target.dashboard for target in read} == {"node", "self"}
    assert growing
    assert with_result(tmp_path, series, exprs, 8 * SCRAPE_SECONDS) == exprs
    assert with_result(tmp_path, series, exprs, 24 * SCRAPE_SECONDS) == exprs - growing


# ---- What simulated jobs show --------------------------------------------------------------------


def queries(letters: str, *panels: str) -> set[tuple[str, str]]:
    """Return single queries, by panel and letter."""
    return {(panel, letter) for panel in panels for letter in letters}


BY_STAGE = "Beside its peers, by stage"
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
# Lines of late ranks beside their peers, where the peers have lines too.
LATE_LINES = queries("A", "Own work per step", "Wait per step")
# What only a job that hangs shows, and what only if a rank gives no sign of life:
STUCK = {
    *queries("D", "GPUs lost over time"),
    *queries("C", "Ranks over time"),
    *queries("B", "Now"),
}
SILENT = queries("D", "Ranks over time")
# What only a GPU shows that heat or power slows down:
THROTTLED = queries("A", "GPU clocks throttled")
# What only a job shows that has become slower as a whole:
SLOWER = {("annotation Changes", ""), *queries("C", "Step time and slowdown")}
# What a job shows that starts, loses ranks, restarts or ends, is not judged or has many late ranks:
RARE = {
    *SLOWER,
    *THROTTLED,
    *(("annotation Lifecycle", ""), ("annotation Restarts", "")),
    *queries("C", "Where it runs"),
    *queries("CDF", "Now"),
    *queries("B", "GPUs lost over time"),
    *queries("EFG", "Ranks over time"),
}
# What only a rank that keeps up shows:
WELL = {*queries("B", "Alerts"), *queries("E", "Now")}
# What only ranks know that compare their steps:
JOINED = {*queries("CEF", "GPUs lost over time"), *queries("A", "In its code")}
NOT_JOINED = queries("G", "GPUs lost over time")


def all_but(*empty: set[tuple[str, str]]) -> dict[Target, bool]:
    """Expect something of every query but those in *empty*."""
    return {t: (t.panel, t.ref) not in set().union(*empty) for t in TARGETS}


def only(those: set[tuple[str, str]], *empty: set[tuple[str, str]]) -> dict[Target, bool]:
    """Expect something of *those*, and nothing of the *empty* ones among them."""
    of = those.union(*empty)
    return {t: (t.panel, t.ref) in those for t in TARGETS if (t.panel, t.ref) in of}


# Which queries show something of a job of the tour, and which do not; of others nothing is said.
EXPECTED = {
    # With a late rank: all but those for a hang, a change or no verdict.
    "loader": all_but(STUCK, SILENT, RARE, WELL, NOT_JOINED),
    # Nobody is named. The dashboard of a rank shows the rank as the line A, late or not.
    "healthy": all_but(LATE, LATE_LINES, STUCK, SILENT, RARE, NOT_JOINED)
    | {t: True for t in TARGETS if t.dashboard == "rank" and (t.panel, t.ref) in LATE_LINES},
    # Its node names the late rank too, and leaves empty what nobody measured.
    "nojoin": all_but(STUCK, SILENT, RARE, WELL, JOINED),
    # A GPU that heat slows down; that the job became slower as a whole is added in the test.
    "thermal": only(THROTTLED | SLOWER),
    # The stuck rank has its row, and all GPUs are lost.
    "hang": only(STUCK | queries("ABDEF", TABLE), SILENT),
    # Of a process that does not run, nobody prints the stack.
    "frozen": only(STUCK | SILENT | queries("ABDE", TABLE), queries("F", TABLE)),
}


def input_series(job_ids: Sequence[str], cluster: str) -> list[dict[str, str]]:
    """Return all that the nodes of jobs of the tour expose until END_SECONDS."""
    clock = Clock(0.0)  # As that of promtool.
    plans = [plan for plan in tour() if plan.job_id in job_ids]
    values: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        fleet = Fleet(plans, Path(directory), clock, frozenset({ALL}))
        app = fleet_app(fleet, "")
        for index in range(SAMPLES):
            for node in fleet.nodes.values():
                answer = ask(app, "GET", f"/node/{node.name}/metrics")
                assert answer is not None
                target = {"instance": node.instance, "job": "rankskew", "cluster": cluster}
                for series, value in scraped(answer.text, target).items():
                    values.setdefault(series, ["_"] * SAMPLES)[index] = value
            clock.seconds += SCRAPE_SECONDS
    return [{"series": series, "values": " ".join(each)} for series, each in values.items()]


def scraped(page: str, target: Mapping[str, str]) -> dict[str, str]:
    """Return the samples of a *page* with the labels of its *target*, by series."""
    found = {f"up{labelled(target)}": "1"}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name + labelled({**sample.labels, **target})] = str(sample.value)
    return found


def labelled(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def only_in(stage: str) -> str:
    return f"label_replace(vector(1), 'stage', '{stage}', '', '')"


# Beside its peers the late rank is late where it was made so, by what was planted; not elsewhere.
LATE_RANK, ITS_PEERS = (t for t in TARGETS if t.panel == BY_STAGE and t.ref in "AB")
OVER = f"({LATE_RANK.expr} - on (stage) {ITS_PEERS.expr} > 0.1)".replace("$cluster", "a")
IN_DATA = replace(LATE_RANK, expr=f"{OVER} and on (stage) {only_in('data')}")
ELSEWHERE = replace(LATE_RANK, expr=f"{OVER} unless on (stage) {only_in('data')}")
EXPECTED["loader"] |= {IN_DATA: True, ELSEWHERE: False}


def sent(target: Target, job_id: str, cluster: str = ".*") -> str:
    """Return the query of *target* for a job of one *cluster*, or of all."""
    return target.substituted(job_id, rank=RANK, cluster=cluster)


def of_other_cluster(target: Target, job_id: str) -> str:
    """Return the query that shows the job in cluster b where a was chosen."""
    in_b = "label_replace(vector(1), 'cluster', 'b', '', '')"
    return f"({sent(target, job_id, 'a')}) and on (cluster) {in_b}"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Those of all queries here that have a result; promtool runs once, since the rules are slow.

    The late job runs in two clusters under one name.
    """
    late = input_series(["loader"], "a")
    twin = [each | {"series": each["series"].replace('r="a"', 'r="b"')} for each in late]
    others = input_series([job_id for job_id in EXPECTED if job_id != "loader"], "a")
    labels = '{cluster="a",job_id="thermal",scope="all",stage="data",instance="n"}'
    changed = [
        {"series": f"rankskew_job_change_{name}{labels}", "values": f"{value}x{SAMPLES}"}
        for name, value in (("ratio", 1.3), ("since_timestamp_seconds", 60))
    ]
    asked = [sent(target, job_id) for job_id, expected in EXPECTED.items() for target in expected]
    for target in EXPECTED["loader"]:
        asked += sent(target, "loader", "a"), of_other_cluster(target, "loader")
    folder = tmp_path_factory.mktemp("queries")
    return with_result(folder, [*late, *twin, *others, *changed], asked, END_SECONDS)


@pytest.mark.parametrize("job_id", EXPECTED)
def test_query_shows_something_when_there_is_something(drawn: set[str], job_id: str) -> None:
    """And nothing when there is nothing: each panel is of one thing."""
    expected = EXPECTED[job_id]
    shown = {target for target in expected if sent(target, job_id) in drawn}

    assert shown == {target for target, something in expected.items() if something}


def test_jobs_of_one_name_in_two_clusters_do_not_meet(drawn: set[str]) -> None:
    """Where one data source holds two clusters, the choice of one shows only its job."""
    expected = EXPECTED["loader"]
    shown = {target for target in expected if sent(target, "loader", "a") in drawn}

    assert shown == {target for target, something in expected.items() if something}
    assert not {t for t in expected if of_other_cluster(t, "loader") in drawn}
