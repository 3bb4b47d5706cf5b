"""Every query is valid, reads series that exist, and shows something when there is something."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboards.dashboard_files import ROOT, RULES, Target, metric_names, targets
from tests.dashboards.fake_job import JOB_ID, NODES, FakeJob, Fault

SCRAPE_SECONDS = 15
MINUTES = 8
TARGETS = list(targets())

LATE = Fault(late_after=120.0)
HEALTHY_WITHOUT_GPU = Fault(gpus=False, join=False)
HUNG = Fault(hung_after=60.0)

HANG_PANELS = {"Stuck outside sync"}
GPU_PANELS = {"GPU utilisation", "GPU memory used", "GPU clocks held down", "PCIe traffic"}
LATE_PANELS = {
    "Who is late",
    "Late since",
    "Late ranks",
    "GPUs lost, by rank and stage",
    "The late stage: late rank against its peers",
    "Stage by stage: the costliest late rank",
    "Alerts firing",
    "annotation Alerts",
}
# Single queries: the reason why nothing can be said, and the red line of a late rank.
REASON = ("Ranks judged", "B")
LATE_LINES = {("Own work per step", "A"), ("Wait per step", "A")}


def promtool(*arguments: str) -> None:
    """Run promtool and fail with what it says."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def input_series(fault: Fault) -> list[dict[str, str]]:
    """Return what both nodes expose over MINUTES, as promtool takes it."""
    job = FakeJob(0.0, fault)
    values: dict[str, list[str]] = {}
    samples = MINUTES * 60 // SCRAPE_SECONDS + 1
    for index in range(samples):
        job.advance(float(index * SCRAPE_SECONDS))
        for series, value in scraped(job).items():
            values.setdefault(series, ["_"] * samples)[index] = value
    return [{"series": series, "values": " ".join(v)} for series, v in values.items()]


def scraped(job: FakeJob) -> dict[str, str]:
    """Return every sample of one scrape of both nodes, by series."""
    found = {}
    for node in range(NODES):
        for family in text_string_to_metric_families(job.exposition(node)):
            for sample in family.samples:
                labels = {**sample.labels, "instance": f"node-{node}:9917", "job": "rankskew"}
                pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
                found[f"{sample.name}{{{pairs}}}"] = str(sample.value)
    return found


def check_results(fault: Fault, expected: dict[Target, bool], folder: Path) -> None:
    """Let the shipped rules run over a job with *fault*; compare which queries have a result."""
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
        "input_series": input_series(fault),
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


def test_every_panel_shows_a_late_job(tmp_path: Path) -> None:
    """With a late rank and GPUs every query has a result but those for a hang or no verdict."""
    expected = {
        target: target.panel not in HANG_PANELS and (target.panel, target.ref) != REASON
        for target in TARGETS
    }
    # Beside its peers it is late where it was made so, by what was planted; not elsewhere.
    late, usual = (t for t in TARGETS if t.panel.startswith("Stage by stage") and t.ref in "AB")
    over = f"{late.expr} - on (stage) {usual.expr} > {0.8 * LATE.late_seconds}"
    in_data = "label_replace(vector(1), 'stage', 'data', '', '')"
    expected[replace(late, expr=f"{over} and on (stage) {in_data}")] = True
    expected[replace(late, expr=f"{over} unless on (stage) {in_data}")] = False

    check_results(LATE, expected, tmp_path)


def test_healthy_job_without_gpus_names_nobody(tmp_path: Path) -> None:
    """Without GPUs and join what is about late ranks and GPUs is empty, the rest is not."""
    nothing = LATE_PANELS | GPU_PANELS | HANG_PANELS
    expected = {
        target: target.panel not in nothing
        and (target.panel, target.ref) not in {REASON, *LATE_LINES}
        for target in TARGETS
    }

    check_results(HEALTHY_WITHOUT_GPU, expected, tmp_path)


def test_hung_job_shows_who_is_stuck(tmp_path: Path) -> None:
    """In a hang the stuck rank has its row, and the panel of judged ranks its reason."""
    expected = {
        target: True
        for target in TARGETS
        if target.panel in HANG_PANELS or (target.panel, target.ref) == REASON
    }

    assert len(expected) == 3
    check_results(HUNG, expected, tmp_path)
