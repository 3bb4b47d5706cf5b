"""What benchmarks/scale.py asks for, counts and promises."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale import SIZES, Seen, cpu_seconds, failures, merged, plans
from benchmarks.scale_run import FAULT_STAGE
from exporter.scrape.levels import exposed_name
from fleet_simulator.command import fleet_plans, parser
from fleet_simulator.stack.parts import ROOT, RULES
from fleet_simulator.training import Training
from generators.listed.metrics import families_by_collector

PAGE = ROOT / "docs" / "scale.md"
DASHBOARDS = ROOT / "dashboards" / "json"


def names_in(paths: Path, pattern: str) -> set[str]:
    """Return every metric name of ours in the files of a directory."""
    texts = (path.read_text() for path in paths.glob(pattern))
    return {name for text in texts for name in re.findall(r"(?<![\w:])rankskew_\w+", text)}


def test_nobody_reads_what_the_documentation_says_can_be_dropped() -> None:
    """No rule and no dashboard would be empty without them."""
    advice = next(line for line in PAGE.read_text().splitlines() if "no rule and no" in line)
    dropped = set(re.findall("`(rankskew_[a-z_]+)`", advice))
    exposed = {exposed_name(f) for _, _, found in families_by_collector() for f in found}

    assert len(dropped) > 1
    assert dropped <= exposed
    assert not dropped & (names_in(RULES, "*.yaml") | names_in(DASHBOARDS, "*.json"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_simulated_fleet_has_one_late_rank_where_it_is_looked_for(jobs: int) -> None:
    """It is in the first job."""
    (plan,) = plans(["--ranks", "64", "--jobs", str(jobs)])
    fleet = fleet_plans(parser().parse_args(plan.simulated()))
    phases = {each.job_id: Training(each).phase(0.0) for each in fleet}
    late = [(job, rank) for job, phase in phases.items() for rank in phase.late]
    job, rank = plan.late

    assert sum(each.ranks for each in fleet) == 64
    assert late == [(job, int(rank))]
    extra = phases[job].late[int(rank)]
    assert max(extra, key=lambda stage: extra[stage]) == FAULT_STAGE


def row(**changes: Any) -> dict[str, Any]:
    return {
        "ranks": 8,
        "tree": "now",
        "jobs": 1,
        "missed": 0,
        "nodes down": 0,
        "rules CPU s of 15": 1.4,
        "CPU s of 15 without rules": 2.4,
        "RSS MiB": 3_000.0,
        "straggler named": True,
        "others accused": 0,
    } | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"missed": 1}, "1 evaluations missed"),
        ({"nodes down": 2}, "2 nodes were not scraped"),
        ({"rules CPU s of 15": 1.6}, "rules take 1.6 CPU s of 15"),
        ({"CPU s of 15 without rules": 2.6}, "scraping takes 2.6 CPU s of 15"),
        ({"RSS MiB": 4_096.0}, "Prometheus takes 4096 MiB"),
        ({"straggler named": False}, "the straggler is not the one and only that is paged"),
        ({"others accused": 3}, "3 others are accused"),
    ],
)
def test_broken_promise_is_said(changes: dict[str, Any], said: str) -> None:
    """Each promise of the benchmark is checked, and what keeps all of them is quiet."""
    assert failures(row()) == []
    assert failures(row(**changes)) == [f"8 ranks: {said}"]
    assert failures(row(tree="before", **changes)) == []  # It promised something else.


def test_rule_that_runs_each_minute_counts_a_quarter() -> None:
    """Rules of groups with other intervals can be compared: seconds in 15 s, dearest first."""
    seen = Seen()
    rules = [{"name": "a", "evaluationTime": 0.2}]
    often = {"name": "often", "interval": 15, "evaluationTime": 0.2, "rules": rules}
    rarely = {"name": "rarely", "interval": 60, "evaluationTime": 0.4, "rules": rules * 2}
    seen.note_rules([rarely, often])
    plan = plans(["--ranks", "8"])[0]

    assert [(r["group"], r["s in 15 s"]) for r in seen.rows(plan)] == [
        ("often", 0.2),
        ("rarely", 0.05),
        ("rarely", 0.05),
    ]


class Spent:
    """A Prometheus whose clock of CPU seconds stands where *readings* say."""

    def __init__(self, *readings: float) -> None:
        self._readings = iter(readings)

    def cpu_seconds(self) -> float:
        return next(self._readings)


def test_cpu_is_told_for_15_seconds_however_late_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn that took twice as long counts half."""
    times = iter([0.0, 0.0, 15.0, 15.0, 45.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    found = cpu_seconds(Spent(10.0, 12.0, 18.0), 2)  # type: ignore[arg-type] # a double

    assert found == [2.0, 3.0]


def test_result_of_one_size_leaves_the_others(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One size measured again replaces its row only."""
    monkeypatch.setattr("benchmarks.scale.RESULTS", tmp_path)
    (tmp_path / "scale.json").write_text(
        '{"rows": [{"ranks": 8, "tree": "now", "jobs": 1, "x": 1},'
        ' {"ranks": 16, "tree": "now", "jobs": 1, "x": 2}]}'
    )
    again = [{"ranks": 8, "tree": "now", "jobs": 1, "x": 3}]

    assert [each["x"] for each in merged("scale", again)] == [3, 2]


def test_each_size_can_be_measured_beside_another_checkout(tmp_path: Path) -> None:
    """The other one first, with its nodes and its rules."""
    plain, beside = plans([]), plans(["--before", str(tmp_path)])

    assert [(plan.ranks, plan.tree) for plan in plain] == [(ranks, "now") for ranks in SIZES]
    assert [(plan.ranks, plan.tree, plan.checkout) for plan in beside] == [
        each for ranks in SIZES for each in ((ranks, "before", tmp_path), (ranks, "now", ROOT))
    ]
