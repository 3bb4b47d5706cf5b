"""Every alert has a runbook, promtool tests and a row in the index; nothing is left over."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.links import RUNBOOKS_URL
from exporter.live.summary import UNSEEN_SECONDS
from generators import alert_rules
from rank_probe.wire.stages import STAGES

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "alerts" / "runbooks"
RULE_FILES = ROOT / "alerts" / "rules"
FIRST = "In the first minute"
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "False alarms"]
# The parts of a notification, for alerts that know more than a sentence says.
PARTS = {"headline", "facts", "first", "impact"}
ALERTS = alert_rules.alerts()
RULES = [
    pytest.param(rule, id=f"{name}-{rule['labels']['severity']}")
    for name, rules in ALERTS.items()
    for rule in rules
]


@functools.cache
def promtool_tests() -> dict[str, list[dict[str, Any]]]:
    """Return what the promtool tests say of each alert."""
    cases: dict[str, list[dict[str, Any]]] = {}
    for path in (ROOT / "tests" / "alerts").glob("*.yaml"):
        for test in yaml.load(path.read_text(), yaml.CSafeLoader)["tests"]:
            for case in test.get("alert_rule_test", []):
                cases.setdefault(case["alertname"], []).append(case)
    return cases


def test_alerts_runbooks_and_tests_match() -> None:
    """The three sets are equal, so nothing is undocumented, untested or stale."""
    assert set(ALERTS) == {path.stem for path in RUNBOOKS.glob("*.md")}
    assert set(ALERTS) == set(promtool_tests())


def test_information_may_be_left_out() -> None:
    """What the optional file tells wakes nobody."""
    rules = [rule for rule in alert_rules.rules(RULE_FILES / "info.yaml") if "alert" in rule]

    assert {rule["labels"]["severity"] for rule in rules} == {"info"}


@pytest.mark.parametrize("name", ALERTS)
def test_alert_is_tested_both_ways(name: str) -> None:
    """Each alert has promtool cases that fire, in each of its severities, and quiet ones."""
    cases = promtool_tests()[name]
    fired = [alert["exp_labels"] for case in cases for alert in case.get("exp_alerts", [])]

    assert {labels["severity"] for labels in fired} == {
        rule["labels"]["severity"] for rule in ALERTS[name]
    }
    assert not all("exp_alerts" in case for case in cases)


@pytest.mark.parametrize("rule", RULES)
def test_alert_says_what_is_needed_at_night(rule: dict[str, Any]) -> None:
    """Each rule has a known severity, a text, and a runbook that exists."""
    assert rule["labels"]["severity"] in alert_rules.SEVERITIES
    assert set(rule["annotations"]) - PARTS == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS_URL}/{rule['alert']}.md"


@pytest.mark.parametrize("name", ALERTS)
def test_runbook_answers_every_question(name: str) -> None:
    """A box with one to three looks or commands, then the same headings, an answer under each.

    Whoever reads PID in a command learns which series has it; what the exporter fills in has one
    spelling.
    """
    text = (RUNBOOKS / f"{name}.md").read_text()
    box, *parts = re.split(r"^## ", text, flags=re.MULTILINE)

    assert box.startswith(f"# {name}\n\n> **{FIRST}**\n>\n")
    assert 1 <= len(re.findall(r"^> \d\. ", box, re.MULTILINE)) <= 3
    assert [part.split("\n")[0] for part in parts] == HEADINGS
    assert all(part.split("\n", 1)[1].strip() for part in parts)
    if re.search(r"\bPID\b", text):
        assert '`PID` is the label `pid` of `rankskew_rank_info{job_id="JOB",rank="RANK"}`' in text
    assert not re.findall(r"\b(?:JOB_ID|RANK_ID|<pid>|\$PID|HOST|HOSTNAME)\b", text)


def test_straggler_runbook_knows_every_stage() -> None:
    """Whatever stage a page names, the runbook says what to do about it."""
    text = (RUNBOOKS / "RankskewStraggler.md").read_text()

    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == set(STAGES) - {"sync"}


def test_page_waits_for_ranks_as_long_as_the_rules() -> None:
    """Nodes of a large job start minutes apart; none of the two can load it from the other."""
    [unseen] = [
        rule
        for rule in alert_rules.rules(RULE_FILES / "ranks.yaml")
        if rule.get("expr") == "job:rankskew_ranks_missing:sum"
    ]

    assert unseen["for"] == f"{UNSEEN_SECONDS / 60:.0f}m"
    state = (RULE_FILES / "state.yaml").read_text()
    assert f"job:rankskew_starting_seconds:max < {UNSEEN_SECONDS:.0f}\n" in state
