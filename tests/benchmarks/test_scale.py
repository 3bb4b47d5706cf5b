"""What the benchmarks of scale and of panels count and promise."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import panels
from benchmarks.scale.__main__ import Seen, cpu_seconds, failures, plans
from devstack.parts import ROOT, RULES
from exporter.scrape.levels import exposed_name
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


def panel_row(board: str, query: str, seconds: float) -> dict[str, Any]:
    """Return what was measured of a query."""
    return {"dashboard": board, "query": query, "seconds": seconds}


def test_slowest_queries_of_each_dashboard_are_kept() -> None:
    """Each dashboard has its slowest queries, the worst first, and what all take together."""
    rows = [panel_row("job", str(number), number / 10) for number in range(10)]
    found = panels.slowest([*rows, panel_row("self", "x", 3.0)])

    assert [each["query"] for each in found] == ["9", "8", "7", "6", "x"]
    assert len(found) == panels.SLOWEST + 1
    assert found[0]["together, s"] == pytest.approx(4.5)


def test_slow_query_is_a_failure() -> None:
    """A panel that nobody wants to wait for is named."""
    rows = [
        panel_row("job", "Late ranks A", panels.LIMIT_SECONDS),
        panel_row("self", "Errors", panels.LIMIT_SECONDS + 0.1),
    ]

    assert panels.failures(rows) == ["self, Errors: 2.1 s"]
