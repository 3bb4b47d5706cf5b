"""Rules and runbooks read what the exporter exposes or a rule records, and nothing else."""

import re
from pathlib import Path

import pytest

from alerts import build_index

ROOT = Path(__file__).parents[2]
RUNBOOKS = sorted((ROOT / "alerts" / "runbooks").glob("*.md"))
# Written by Prometheus itself, and by users who set other thresholds or know their price.
GIVEN = {"up", "rankskew:threshold:override", "rankskew:gpu_hour_price:override"}
THRESHOLD = "job:rankskew_threshold:value"
# What an operator may leave out.
OPTIONAL = "info"
# A query in a text, quotes and all.
QUERY = re.compile(r'printf "((?:[^"\\]|\\.)*)"')
# The levels at which series are put together or matched.
LEVELS = re.compile(r"\b(by|on) \(([^)]*)\)")
# A series is one of ours if it has our prefix or is named like a recording rule.
SERIES = re.compile(r"(?<![\w:])(?:rankskew_\w+|[a-z_]+:[a-z_]+:[a-z_0-9]+|up)(?![\w:])")


def exposed() -> set[str]:
    """Return every metric name in the exporter's sources."""
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
            queries += QUERY.findall(text)
    return {name for query in queries for name in SERIES.findall(query)}


def core_files() -> list[Path]:
    """Return the rule files that everybody loads."""
    return [path for path in build_index.rule_files() if path.stem != OPTIONAL]


@pytest.mark.parametrize("path", build_index.rule_files(), ids=lambda path: path.stem)
def test_rules_read_series_that_exist(path: Path) -> None:
    """A metric that is renamed or dropped cannot silence a rule."""
    assert read_by_rules(path) <= exposed() | recorded() | GIVEN


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_runbooks_point_to_series_that_exist(path: Path) -> None:
    """Everything that a runbook refers to exists."""
    mentioned = {name for name in SERIES.findall(path.read_text()) if name != "up"}

    assert mentioned <= exposed() | recorded()


def test_no_rule_records_what_nobody_reads() -> None:
    """Each recorded series is read by a rule, or is one of those made for people."""
    for_people = {
        "job:rankskew_coverage:ratio",
        "job:rankskew_lost_cost_per_hour:sum",
        "job:rankskew_state:info",
        "job_kind:rankskew_lost_cost_per_hour:sum",
        "node:rankskew_gpus_lost:sum",
    }
    read = set().union(*map(read_by_rules, build_index.rule_files()))

    assert recorded() - read == for_people


def test_core_does_without_the_optional_file() -> None:
    """An operator who leaves out the information file loses nothing else."""
    optional = [path for path in build_index.rule_files() if path.stem == OPTIONAL]
    recorded_there = {rule.get("record") for path in optional for rule in build_index.rules(path)}

    assert optional
    assert not set().union(*map(read_by_rules, core_files())) & recorded_there


def test_every_threshold_is_read() -> None:
    """None is left over that changes nothing."""
    named = set()
    for rule in (rule for path in build_index.rule_files() for rule in build_index.rules(path)):
        named |= set(re.findall(rf'{THRESHOLD}\{{name="(\w+)"', rule["expr"]))

    assert {name for name, _, _ in build_index.thresholds()} == named


@pytest.mark.parametrize("path", build_index.rule_files(), ids=lambda path: path.stem)
def test_rules_keep_the_cluster(path: Path) -> None:
    """Two clusters in one Thanos or Mimir do not meet, in expressions and in texts."""
    levels = [
        (rule.get("record", rule.get("alert")), level)
        for rule in build_index.rules(path)
        for _, level in LEVELS.findall(rule["expr"])
    ]
    queries = [
        query
        for rule in build_index.rules(path)
        for text in rule.get("annotations", {}).values()
        for query in QUERY.findall(text)
        if "job_id=" in query
    ]

    assert [one for one in levels if one[1] and "cluster" not in one[1].split(", ")] == []
    assert [query for query in queries if "cluster=" not in query] == []
