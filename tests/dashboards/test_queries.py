"""Every query is valid, reads series that exist, and shows something when there is something."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from dashboards.detail import collectors
from exporter.scrape.levels import LEVELS, PARTS, Level
from tests.alerts.promtool import Expect, assert_rules, promtool
from tests.dashboards.dashboard_files import RULES, Target, metric_names, targets
from tests.dashboards.simulated import MINUTES, SCRAPE_SECONDS, input_series

# The rank that the faults of the simulated jobs are about.
RANK = "6"
# The first row has a test of its own, test_first_screen.py.
FIRST_ROW = {"State", "GPUs lost", "Who", "Since", "Step", "Judged", "Alerts"}
TARGETS = [
    target
    for target in targets()
    if target.dashboard == "rank" or (target.dashboard == "job" and target.panel not in FIRST_ROW)
]


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


@cache
def series_of(job_id: str, cluster: str = "simulated") -> list[dict[str, str]]:
    """Return what the nodes of a simulated job expose."""
    return input_series([job_id], cluster=cluster)


def check_results(
    job_id: str, series: list[dict[str, str]], expected: dict[Target, bool], folder: Path
) -> None:
    """Let the shipped rules run over *series*; compare which queries have a result."""
    asked = [
        Expect(
            f"group({target.substituted(job_id, rank=RANK)})",
            60 * MINUTES,
            {"{}": 1} if something else {},
        )
        for target, something in expected.items()
    ]
    assert_rules(folder, series, asked, SCRAPE_SECONDS)


def all_but(*empty: set[tuple[str, str]]) -> dict[Target, bool]:
    """Expect something of every query but those in *empty*."""
    return {t: (t.panel, t.ref) not in set().union(*empty) for t in TARGETS}


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


def test_every_panel_shows_a_late_job(tmp_path: Path) -> None:
    """With a late rank every query has a result but those for a hang, a change or no verdict."""
    expected = all_but(STUCK, SILENT, RARE, WELL, NOT_JOINED)
    # Beside its peers it is late where it was made so, by what was planted; not elsewhere.
    late, usual = (t for t in TARGETS if t.panel == BY_STAGE and t.ref in "AB")
    over = f"{late.expr} - on (stage) {usual.expr} > 0.1"
    in_data = "label_replace(vector(1), 'stage', 'data', '', '')"
    expected[replace(late, expr=f"{over} and on (stage) {in_data}")] = True
    expected[replace(late, expr=f"{over} unless on (stage) {in_data}")] = False

    check_results("loader", series_of("loader"), expected, tmp_path)


def test_healthy_job_names_nobody(tmp_path: Path) -> None:
    """Without a late rank what is about late ranks is empty, the rest is not."""
    expected = all_but(LATE, LATE_LINES, STUCK, SILENT, RARE, NOT_JOINED)
    # The dashboard of a rank shows the rank as the line A, late or not.
    of_rank = [t for t in TARGETS if t.dashboard == "rank" and (t.panel, t.ref) in LATE_LINES]
    expected |= dict.fromkeys(of_rank, True)

    check_results("healthy", series_of("healthy"), expected, tmp_path)


def test_job_without_join_shows_who_is_late(tmp_path: Path) -> None:
    """Its node names the rank too, and leaves empty what nobody measured."""
    expected = all_but(STUCK, SILENT, RARE, WELL, JOINED)

    check_results("nojoin", series_of("nojoin"), expected, tmp_path)


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
    labels = '{job_id="j",rank="0",gpu="0",type="uncorrected",xid="79",result="invalid"}'
    minute = 60 / SCRAPE_SECONDS

    read = [t for t in [*targets(), *rules] if metric_names(t.expr) & counters]

    assert {t.dashboard for t in read} == {"node", "self"}
    for target in read:
        (name,) = metric_names(target.expr) & counters
        series = [{"series": f"{name}{labels}", "values": f"_x{10 * minute:.0f} 1x4"}]
        drawn = Expect(f"group({target.substituted('j')})", 10 * 60, {"{}": 1})
        over = replace(drawn, at_seconds=12 * 60, samples={})
        is_value = not re.search(r"rate|increase", target.expr)
        assert_rules(tmp_path, series, [drawn] if is_value else [drawn, over], SCRAPE_SECONDS)


def test_throttled_gpu_has_its_line(tmp_path: Path) -> None:
    """A GPU that heat slows down is in the panel of its rank."""
    expected = {t: True for t in TARGETS if (t.panel, t.ref) in THROTTLED}

    assert {t.dashboard for t in expected} == {"rank"}
    check_results("thermal", series_of("thermal"), expected, tmp_path)


def test_job_that_became_slower_has_its_line(tmp_path: Path) -> None:
    """And a mark where it began."""
    expected = {t: True for t in TARGETS if (t.panel, t.ref) in SLOWER}
    labels = '{cluster="simulated",job_id="healthy",scope="all",stage="data",instance="n"}'
    changed = [
        {"series": f"rankskew_job_change_{name}{labels}", "values": f"{value}x{4 * MINUTES}"}
        for name, value in (("ratio", 1.3), ("since_timestamp_seconds", 60))
    ]

    assert len(expected) == 2
    check_results("healthy", [*series_of("healthy"), *changed], expected, tmp_path)


def test_jobs_of_one_name_in_two_clusters_do_not_meet(tmp_path: Path) -> None:
    """Where one data source holds two clusters, the choice of one shows only its job."""
    series = series_of("loader", "a") + series_of("loader", "b")
    one = [replace(t, expr=t.expr.replace("$cluster", "a")) for t in TARGETS]
    in_b = [replace(t, expr=f"({t.expr}) and on (cluster) {_IN_B}") for t in one]
    expected = dict(zip(one, all_but(STUCK, SILENT, RARE, WELL, NOT_JOINED).values(), strict=True))
    expected |= dict.fromkeys(in_b, False)
    # And with all clusters at once no query fails.
    expected |= all_but(STUCK, SILENT, RARE, WELL, NOT_JOINED)

    check_results("loader", series, expected, tmp_path)


_IN_B = "label_replace(vector(1), 'cluster', 'b', '', '')"


@pytest.mark.parametrize(
    ("job_id", "shown"),
    # Of a process that does not run, nobody prints the stack.
    [("hang", STUCK | queries("F", TABLE)), ("frozen", STUCK | SILENT)],
    ids=["stuck", "frozen"],
)
def test_hung_job_shows_who_is_stuck(
    job_id: str, shown: set[tuple[str, str]], tmp_path: Path
) -> None:
    """In a hang the stuck rank has its row, and all GPUs are lost."""
    shown |= queries("ABDE", TABLE)
    hanging = STUCK | SILENT | queries("ABDEF", TABLE)
    expected = {t: (t.panel, t.ref) in shown for t in TARGETS if (t.panel, t.ref) in hanging}

    assert len(expected) == len(hanging)
    check_results(job_id, series_of(job_id), expected, tmp_path)
