"""Alerts are complete; rules and runbooks read what is exposed or recorded, and nothing else."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from dashboards.detail import collectors, detail_of
from dashboards.links import RUNBOOKS_URL
from exporter.gpu_faults.over_time import LINK_ERRORS
from exporter.live.summary import UNSEEN_SECONDS
from exporter.vocabulary.thresholds import defaults
from generators import alert_rules

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "alerts" / "rules"
RUNBOOKS: Final = {
    path.stem: path.read_text() for path in (ROOT / "alerts" / "runbooks").glob("*.md")
}
ALERTS: Final = alert_rules.alerts()
# The parts of a notification, for alerts that know more than a sentence says.
PARTS: Final = {"headline", "facts", "first", "impact"}
# Written by Prometheus itself, and by users who set other thresholds, know their price, or have
# several Prometheus.
GIVEN: Final = {
    "up",
    "rankskew:threshold:override",
    "rankskew:gpu_hour_price:override",
    "rankskew:part:info",
}
# Recorded for people only.
FOR_PEOPLE: Final = {
    "job:rankskew_coverage:ratio",
    "job:rankskew_lost_cost_per_hour:sum",
    "job:rankskew_lost_power_watts:sum",
    "node:rankskew_gpus_lost:sum",
    "node:rankskew_incident_gpu_seconds:sum1h",
    "node:rankskew_used_gpu_seconds:sum1h",
}
# What an operator may leave out.
OPTIONAL: Final = RULES / "info.yaml"
# A query in a text, quotes and all.
QUERY: Final = re.compile(r'printf "((?:[^"\\]|\\.)*)"')
# The levels at which series are put together or matched.
LEVELS: Final = re.compile(r"\b(?:by|on) \(([^)]+)\)")
# A series is one of ours if it has our prefix or is named like a recording rule.
SERIES: Final = re.compile(r"(?<![\w:])(?:rankskew_\w+|[a-z_]+:[a-z_]+:[a-z_0-9]+|up)(?![\w:])")
# Where a rule, or the exporter, asks for a threshold.
ASKED: Final = (
    re.compile(r'job:rankskew_threshold:value\{name="(\w+)"'),
    re.compile(r'(?:threshold|thresholds\.value)\(\s*"(\w+)"|\bFault\([^)]*"(\w+)"'),
)


def promtool_cases() -> dict[str, list[dict[str, Any]]]:
    """Return what the promtool tests say of each alert."""
    cases: dict[str, list[dict[str, Any]]] = {}
    for path in (ROOT / "tests" / "alerts").glob("*.yaml"):
        for test in yaml.load(path.read_text(), yaml.CSafeLoader)["tests"]:
            for case in test.get("alert_rule_test", []):
                cases.setdefault(case["alertname"], []).append(case)
    return cases


def test_alert_has_a_runbook_and_is_tested_both_ways() -> None:
    """promtool sees each fire, in each of its severities, and stay quiet; nothing is left over."""
    cases = promtool_cases()

    assert ALERTS.keys() == RUNBOOKS.keys() == cases.keys()
    for name, rules in ALERTS.items():
        fired = [
            alert["exp_labels"] for case in cases[name] for alert in case.get("exp_alerts", [])
        ]
        severities = {each for rule in rules for each in alert_rules.severities(rule)}
        assert {labels["severity"] for labels in fired} == severities, name
        assert not all("exp_alerts" in case for case in cases[name]), name


def test_alert_says_what_is_needed_at_night() -> None:
    """Each has a known severity, a text and its runbook; what may be left out wakes nobody."""
    for rule in (rule for rules in ALERTS.values() for rule in rules):
        said = rule["annotations"]
        assert set(alert_rules.severities(rule)) <= set(alert_rules.SEVERITIES)
        assert said.keys() - PARTS == {"summary", "description", "runbook_url"}, rule
        assert said["runbook_url"] == f"{RUNBOOKS_URL}/{rule['alert']}.md"
    optional = [rule for rule in alert_rules.rules(OPTIONAL) if "alert" in rule]
    assert {rule["labels"]["severity"] for rule in optional} == {"info"}


def test_page_waits_for_ranks_as_long_as_the_rules() -> None:
    """Nodes of a large job start minutes apart; none of the two can load it from the other."""
    [unseen] = [
        rule
        for rule in alert_rules.rules(RULES / "ranks.yaml")
        if rule.get("expr") == "job:rankskew_ranks_missing:sum"
    ]

    assert unseen["for"] == f"{UNSEEN_SECONDS / 60:.0f}m"
    state = (RULES / "state.yaml").read_text()
    assert f"job:rankskew_starting_seconds:max < {UNSEEN_SECONDS:.0f}\n" in state


def recorded(rules: Iterable[dict[str, Any]]) -> set[str]:
    """Return every series that *rules* record."""
    return {rule["record"] for rule in rules if "record" in rule}


def queries_in_texts(rule: dict[str, Any]) -> list[str]:
    """Return the queries in the texts of an alert."""
    return [query for text in rule.get("annotations", {}).values() for query in QUERY.findall(text)]


def read_by_rules(path: Path) -> set[str]:
    """Return every series that the expressions and the queries in the texts of a file read."""
    rules = alert_rules.rules(path)
    queries = [query for rule in rules for query in (rule["expr"], *queries_in_texts(rule))]
    return {name for query in queries for name in SERIES.findall(query)}


def core_files() -> list[Path]:
    """Return the rule files that everybody loads."""
    return [path for path in alert_rules.rule_files() if path != OPTIONAL]


def test_rules_and_runbooks_read_series_that_exist() -> None:
    """A metric that is renamed or dropped silences no rule, and no rule records in vain.

    An operator who leaves out the information file loses nothing else.
    """
    ours = recorded(alert_rules.all_rules())
    core = set[str]().union(*map(read_by_rules, core_files()))
    read = core | read_by_rules(OPTIONAL)
    mentioned = {name for text in RUNBOOKS.values() for name in SERIES.findall(text)}

    assert read <= collectors().keys() | ours | GIVEN
    assert mentioned <= collectors().keys() | ours | {"up"}
    assert ours - read == FOR_PEOPLE
    for text in RUNBOOKS.values():
        flag = ",".join(sorted(detail_of(text)))
        assert not flag or f"\n\nSome of these series need `--series.detail={flag}`.\n" in text
    assert not core & recorded(alert_rules.rules(OPTIONAL))


def test_every_threshold_is_read() -> None:
    """None is left over that changes nothing, in a rule or in an exporter."""
    in_rules = {name for rule in alert_rules.all_rules() for name in ASKED[0].findall(rule["expr"])}
    code = "".join(path.read_text() for path in (ROOT / "exporter").rglob("*.py"))
    in_code = {LINK_ERRORS, *(name for found in ASKED[1].findall(code) for name in found)}

    assert in_rules | in_code & defaults().keys() == defaults().keys()


def test_rules_keep_the_cluster() -> None:
    """Two clusters in one Thanos or Mimir do not meet, in expressions and in texts."""
    for rule in alert_rules.all_rules():
        for level in LEVELS.findall(rule["expr"]):
            assert "cluster" in level.split(", "), rule
        of_jobs = [query for query in queries_in_texts(rule) if "job_id=" in query]
        assert all("cluster=" in query for query in of_jobs), rule
