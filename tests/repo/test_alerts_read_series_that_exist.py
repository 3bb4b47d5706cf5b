"""Rules and runbooks read what the exporter exposes or a rule records, and nothing else."""

import re
from pathlib import Path

import pytest

from dashboards.detail import collectors
from exporter.vocabulary.thresholds import defaults
from generators import alert_rules

ROOT = Path(__file__).parents[2]
RUNBOOKS = sorted((ROOT / "alerts" / "runbooks").glob("*.md"))
# Written by Prometheus itself, and by users who set other thresholds, know their price, or have
# several Prometheus.
GIVEN = {
    "up",
    "rankskew:threshold:override",
    "rankskew:gpu_hour_price:override",
    "rankskew:part:info",
}
ALL_RULES = [rule for path in alert_rules.rule_files() for rule in alert_rules.rules(path)]
THRESHOLD = "job:rankskew_threshold:value"
# What an operator may leave out.
OPTIONAL = "info"
# A query in a text, quotes and all.
QUERY = re.compile(r'printf "((?:[^"\\]|\\.)*)"')
# The levels at which series are put together or matched.
LEVELS = re.compile(r"\b(by|on) \(([^)]*)\)")
# A series is one of ours if it has our prefix or is named like a recording rule.
SERIES = re.compile(r"(?<![\w:])(?:rankskew_\w+|[a-z_]+:[a-z_]+:[a-z_0-9]+|up)(?![\w:])")


def recorded() -> set[str]:
    """Return every series that a rule records."""
    return {rule["record"] for rule in ALL_RULES if "record" in rule}


def read_by_rules(path: Path) -> set[str]:
    """Return every series that the expressions and the queries in the texts of a file read."""
    read = [rule["expr"] for rule in alert_rules.rules(path)] + queries_in_texts(path)
    return {name for query in read for name in SERIES.findall(query)}


def queries_in_texts(path: Path) -> list[str]:
    """Return the queries in the texts of a file's alerts."""
    return [
        query
        for rule in alert_rules.rules(path)
        for text in rule.get("annotations", {}).values()
        for query in QUERY.findall(text)
    ]


def core_files() -> list[Path]:
    """Return the rule files that everybody loads."""
    return [path for path in alert_rules.rule_files() if path.stem != OPTIONAL]


@pytest.mark.parametrize("path", alert_rules.rule_files(), ids=lambda path: path.stem)
def test_rules_read_series_that_exist(path: Path) -> None:
    """A metric that is renamed or dropped cannot silence a rule."""
    assert read_by_rules(path) <= collectors().keys() | recorded() | GIVEN


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_runbooks_point_to_series_that_exist(path: Path) -> None:
    """Everything that a runbook refers to exists."""
    mentioned = {name for name in SERIES.findall(path.read_text()) if name != "up"}

    assert mentioned <= collectors().keys() | recorded()


def test_no_rule_records_what_nobody_reads() -> None:
    """Each recorded series is read by a rule, or is one of those made for people."""
    for_people = {
        "job:rankskew_coverage:ratio",
        "job:rankskew_lost_cost_per_hour:sum",
        "job:rankskew_lost_power_watts:sum",
        "job:rankskew_state:info",
        "node:rankskew_gpus_lost:sum",
        "node:rankskew_incident_gpu_seconds:sum1h",
        "node:rankskew_used_gpu_seconds:sum1h",
    }
    read = set().union(*map(read_by_rules, alert_rules.rule_files()))

    assert recorded() - read == for_people


def test_core_does_without_the_optional_file() -> None:
    """An operator who leaves out the information file loses nothing else."""
    [optional] = set(alert_rules.rule_files()) - set(core_files())
    recorded_there = {rule.get("record") for rule in alert_rules.rules(optional)}

    assert not set().union(*map(read_by_rules, core_files())) & recorded_there


def test_every_threshold_is_read() -> None:
    """None is left over that changes nothing, in a rule or in an exporter."""
    files = [path.read_text() for path in (ROOT / "exporter").rglob("*.py")]
    sources = [text for text in files if "threshold" in text]
    named = {name for name in defaults() if any(f'"{name}"' in source for source in sources)}
    for rule in ALL_RULES:
        named |= set(re.findall(rf'{THRESHOLD}\{{name="(\w+)"', rule["expr"]))

    assert set(defaults()) == named


@pytest.mark.parametrize("path", alert_rules.rule_files(), ids=lambda path: path.stem)
def test_rules_keep_the_cluster(path: Path) -> None:
    """Two clusters in one Thanos or Mimir do not meet, in expressions and in texts."""
    levels = [
        (rule.get("record", rule.get("alert")), level)
        for rule in alert_rules.rules(path)
        for _, level in LEVELS.findall(rule["expr"])
    ]
    of_jobs = [query for query in queries_in_texts(path) if "job_id=" in query]

    assert [one for one in levels if one[1] and "cluster" not in one[1].split(", ")] == []
    assert [query for query in of_jobs if "cluster=" not in query] == []
