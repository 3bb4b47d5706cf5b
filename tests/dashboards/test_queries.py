"""Every query is valid, reads series that exist, and shows something when there is something."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboards.dashboard_files import ROOT, RULES, Target, metric_names, targets
from tests.dashboards.fake_job import JOB_ID, NODES, FakeJob, Fault

SCRAPE_SECONDS = 15
MINUTES = 8
TARGETS = list(targets())
# Those that the fake job is made for.
JOB_TARGETS = [target for target in TARGETS if target.dashboard == "job"]

HEALTHY = Fault(gpus=False)
LATE = Fault(late_after=120.0)
LATE_WITHOUT_JOIN = Fault(late_after=120.0, gpus=False, join=False)
HUNG = Fault(hung_after=60.0)
FROZEN = Fault(hung_after=60.0, frozen=True)

GPU_PANELS = {"GPU utilisation", "GPU memory used", "GPU clocks throttled", "PCIe traffic"}
LATE_PANELS = {
    "Late ranks now",
    "Late since",
    "Late ranks",
    "Late stage: late rank and its peers",
    "The costliest late rank, by stage",
    "Alerts firing",
    "annotation Alerts",
}
# Single queries, by panel and letter. What only a late rank draws:
LATE_LINES = {
    ("Own work per step", "A"),
    ("Wait per step", "A"),
    ("GPUs lost, by rank and stage", "A"),
}
# What a job shows that starts, restarts or ends:
LIFECYCLE = {("annotation Lifecycle", ""), ("annotation Restarts", "")}
# What only a job that hangs shows, and the last two only if a rank gives no sign of life:
STUCK = {
    ("Ranks judged", "B"),
    ("GPUs lost, by kind", "A"),
    ("Where the ranks are stuck", "A"),
    ("Stuck outside sync", "A"),
    ("Stuck outside sync", "B"),
}
HANGING = STUCK | {
    ("Where the ranks are stuck", "B"),
    ("Time since the last activity", "B"),
}
# What only ranks know that compare their steps, and what is left of the wait where they do not:
JOINED = {("GPUs lost, by kind", ref) for ref in "CDE"} | {
    ("GPUs lost, by rank and stage", "B"),
    ("Late since", "A"),
    ("Late ranks", "G"),
}
NOT_TOLD_APART = ("GPUs lost, by kind", "F")


def promtool(*arguments: str) -> None:
    """Run promtool and fail with what it says."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def input_series(fault: Fault, **labels: str) -> list[dict[str, str]]:
    """Return what both nodes expose over MINUTES, with further *labels*, as promtool takes it."""
    job = FakeJob(0.0, fault)
    values: dict[str, list[str]] = {}
    samples = MINUTES * 60 // SCRAPE_SECONDS + 1
    for index in range(samples):
        job.advance(float(index * SCRAPE_SECONDS))
        for series, value in scraped(job, labels).items():
            values.setdefault(series, ["_"] * samples)[index] = value
    return [{"series": series, "values": " ".join(v)} for series, v in values.items()]


def scraped(job: FakeJob, extra: dict[str, str]) -> dict[str, str]:
    """Return every sample of one scrape of both nodes, by series."""
    found = {}
    for node in range(NODES):
        for family in text_string_to_metric_families(job.exposition(node)):
            for sample in family.samples:
                target = {"instance": f"node-{node}:9917", "job": "rankskew"}
                labels = sample.labels | target | extra
                pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
                found[f"{sample.name}{{{pairs}}}"] = str(sample.value)
    return found


def check_results(series: list[dict[str, str]], expected: dict[Target, bool], folder: Path) -> None:
    """Let the shipped rules run over *series*; compare which queries have a result."""
    tests = [
        {
            "expr": f"group({target.substituted(JOB_ID)})",
            "eval_time": f"{MINUTES}m",
            "exp_samples": [{"labels": "{}", "value": 1}] if something else [],
        }
        for target, something in expected.items()
    ]
    interval = f"{SCRAPE_SECONDS}s"
    case = {
        "interval": interval,
        "input_series": series,
        "promql_expr_test": tests,
    }
    suite = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": interval,
        "tests": [case],
    }
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(suite), encoding="utf-8")
    promtool("test", "rules", str(path))


def test_every_query_is_promql(tmp_path: Path) -> None:
    """Prometheus 2.42 parses every query once its variables are substituted."""
    rules = [
        {"record": f"query:{number}", "expr": target.substituted(JOB_ID)}
        for number, target in enumerate(TARGETS)
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))

    promtool("check", "rules", str(path))


def test_every_series_exists() -> None:
    """A query reads only what a collector exposes or a shipped rule records."""
    sources = "".join(path.read_text() for path in (ROOT / "exporter").rglob("*.py"))
    rules = yaml.safe_load_all("---\n".join(path.read_text() for path in RULES))
    exposed = set(re.findall(r'"(rankskew_\w+)"', sources))
    recorded = {rule.get("record") for file in rules for g in file["groups"] for rule in g["rules"]}
    read = {name for target in TARGETS for name in metric_names(target.expr)}

    assert read
    assert read - exposed - recorded == set()


def all_but(panels: set[str], queries: set[tuple[str, str]]) -> dict[Target, bool]:
    """Expect something of every query but those of *panels* and single *queries*."""
    return {t: t.panel not in panels and (t.panel, t.ref) not in queries for t in JOB_TARGETS}


def test_every_panel_shows_a_late_job(tmp_path: Path) -> None:
    """With a late rank and GPUs every query has a result but those for a hang or no verdict."""
    expected = all_but(set(), HANGING | LIFECYCLE | {NOT_TOLD_APART})
    # Beside its peers it is late where it was made so, by what was planted; not elsewhere.
    late, usual = (
        t for t in JOB_TARGETS if t.panel.startswith("The costliest late rank") and t.ref in "AB"
    )
    over = f"{late.expr} - on (stage) {usual.expr} > {0.8 * LATE.late_seconds}"
    in_data = "label_replace(vector(1), 'stage', 'data', '', '')"
    expected[replace(late, expr=f"{over} and on (stage) {in_data}")] = True
    expected[replace(late, expr=f"{over} unless on (stage) {in_data}")] = False
    # What it costs is what is charged to it: most of the wait, and less than its seven peers.
    who = next(t for t in JOB_TARGETS if t.panel == "Late ranks now")
    expected[replace(who, expr=f"({who.expr}) > 1.5 < 7")] = True

    check_results(input_series(LATE), expected, tmp_path)


def test_healthy_job_without_gpus_names_nobody(tmp_path: Path) -> None:
    """Without a late rank and GPUs what is about them is empty, the rest is not."""
    expected = all_but(
        LATE_PANELS | GPU_PANELS, HANGING | LIFECYCLE | LATE_LINES | {NOT_TOLD_APART}
    )

    check_results(input_series(HEALTHY), expected, tmp_path)


def test_job_without_join_shows_who_is_late(tmp_path: Path) -> None:
    """The fallback names the rank too, and leaves empty what nobody measured."""
    expected = all_but(GPU_PANELS, HANGING | LIFECYCLE | JOINED | {("Late ranks", "H")})

    check_results(input_series(LATE_WITHOUT_JOIN), expected, tmp_path)


def test_jobs_of_one_name_in_two_clusters_do_not_meet(tmp_path: Path) -> None:
    """Where one data source holds two clusters, no query fails, and only the late job is late."""
    series = input_series(LATE, cluster="a") + input_series(HEALTHY, cluster="b")
    who = next(t for t in JOB_TARGETS if t.panel == "Late ranks now")
    expected = all_but(set(), HANGING | LIFECYCLE | {NOT_TOLD_APART})
    in_a = "label_replace(vector(1), 'cluster', 'a', '', '')"
    expected[replace(who, expr=f"({who.expr}) and on (cluster) {in_a}")] = True
    expected[replace(who, expr=f"({who.expr}) unless on (cluster) {in_a}")] = False

    check_results(series, expected, tmp_path)


@pytest.mark.parametrize(
    ("fault", "shown"), [(HUNG, STUCK), (FROZEN, HANGING)], ids=["stuck", "frozen"]
)
def test_hung_job_shows_who_is_stuck(
    fault: Fault, shown: set[tuple[str, str]], tmp_path: Path
) -> None:
    """In a hang the stuck rank has its row, all GPUs are lost, and nobody can be judged."""
    expected = {t: (t.panel, t.ref) in shown for t in JOB_TARGETS if (t.panel, t.ref) in HANGING}

    assert len(expected) == len(HANGING)
    check_results(input_series(fault), expected, tmp_path)
