"""Rules and runbooks read what the exporter exposes or a rule records, and nothing else."""

import re
from pathlib import Path

import pytest

from alerts import build_index

ROOT = Path(__file__).parents[2]
RUNBOOKS = sorted((ROOT / "alerts" / "runbooks").glob("*.md"))
# Written by Prometheus itself, and by users who want other thresholds or know their price.
GIVEN = {"up", "rankskew:threshold:override", "rankskew:gpu_hour_price:override"}
# A series is one of ours if it has our prefix or is named like a recording rule.
SERIES = re.compile(r"(?<![\w:])(?:rankskew_\w+|[a-z_]+:[a-z_]+:[a-z_0-9]+|up)(?![\w:])")


def exposed() -> set[str]:
    """Return every metric whose name the exporter's sources write out."""
    sources = (ROOT / "exporter").rglob("*.py")
    return {name for path in sources for name in re.findall(r'"(rankskew_\w+)"', path.read_text())}


def recorded() -> set[str]:
    """Return every series that a rule records."""
    rules = [rule for path in build_index.rule_files() for rule in build_index.rules(path)]
    return {rule["record"] for rule in rules if "record" in rule}


def read_by_rules(path: Path) -> set[str]:
    """Return every series that the expressions and the queries in the texts of a file read."""
    queries: list[str] = []
    for rule in build_index.rules(path):
        queries.append(rule["expr"])
        for text in rule.get("annotations", {}).values():
            queries += re.findall(r'printf "([^"]+)', text)
    return {name for query in queries for name in SERIES.findall(query)}


@pytest.mark.parametrize("path", build_index.rule_files(), ids=lambda path: path.stem)
def test_rules_read_series_that_exist(path: Path) -> None:
    """A metric that is renamed or dropped cannot silence a rule."""
    assert read_by_rules(path) <= exposed() | recorded() | GIVEN


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_runbooks_point_to_series_that_exist(path: Path) -> None:
    """What a runbook tells to look at is there."""
    mentioned = {name for name in SERIES.findall(path.read_text()) if name != "up"}

    assert mentioned <= exposed() | recorded()


def test_no_rule_records_what_nobody_reads() -> None:
    """Each recorded series is read by a rule, or is one of those made for people."""
    for_people = {
        "job:rankskew_coverage:ratio",
        "job:rankskew_lost_cost_per_hour:mean1m",
        "job_kind:rankskew_lost_cost_per_hour:mean1m",
        "rank:rankskew_gpu_power_watts:mean5m",
        "rank:rankskew_gpu_pcie_bytes_per_second:mean5m",
    }
    read = set().union(*map(read_by_rules, build_index.rule_files()))

    assert recorded() - read == for_people
