"""Every alert has a runbook, promtool tests and a row in the index; nothing is left over."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts import build_index
from rank_probe.stages import STAGES

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "alerts" / "runbooks"
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "False alarms"]
RUNBOOK_URL = "https://github.com/rankskew/rankskew/blob/main/alerts/runbooks/"


def alerts() -> dict[str, dict[str, Any]]:
    """Return every alert by its name."""
    rules = [rule for path in build_index.rule_files() for rule in build_index.rules(path)]
    return {rule["alert"]: rule for rule in rules if "alert" in rule}


def promtool_tests() -> dict[str, list[dict[str, Any]]]:
    """Return what the promtool tests say of each alert."""
    cases: dict[str, list[dict[str, Any]]] = {}
    for path in (ROOT / "tests" / "alerts").glob("*.yaml"):
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test.get("alert_rule_test", []):
                cases.setdefault(case["alertname"], []).append(case)
    return cases


def test_alerts_runbooks_and_tests_match() -> None:
    """The three sets are equal, so nothing is undocumented, untested or stale."""
    assert set(alerts()) == {path.stem for path in RUNBOOKS.glob("*.md")}
    assert set(alerts()) == set(promtool_tests())


@pytest.mark.parametrize("name", sorted(alerts()))
def test_alert_is_tested_both_ways(name: str) -> None:
    """Each alert has promtool cases that fire and cases that stay quiet."""
    fires = ["exp_alerts" in case for case in promtool_tests()[name]]

    assert any(fires)
    assert not all(fires)


@pytest.mark.parametrize("name", sorted(alerts()))
def test_alert_says_what_is_needed_at_night(name: str) -> None:
    """Each alert has a known severity, a text, and a runbook that exists."""
    alert = alerts()[name]

    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert alert["annotations"]["runbook_url"] == f"{RUNBOOK_URL}{name}.md"


@pytest.mark.parametrize("name", sorted(alerts()))
def test_runbook_answers_every_question(name: str) -> None:
    """Each runbook has the same headings in the same order, and an answer under each."""
    text = (RUNBOOKS / f"{name}.md").read_text()
    parts = re.split(r"^## ", text, flags=re.MULTILINE)

    assert parts[0].strip() == f"# {name}"
    assert [part.split("\n")[0] for part in parts[1:]] == HEADINGS
    assert all(part.split("\n", 1)[1].strip() for part in parts[1:])


def test_straggler_runbook_knows_every_stage() -> None:
    """Whatever stage a page names, the runbook says what to do about it."""
    text = (RUNBOOKS / "RankskewStraggler.md").read_text()

    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == set(STAGES) - {"sync"}


def test_index_is_up_to_date() -> None:
    """The tables of alerts/README.md are what build_index.py writes."""
    text = build_index.README.read_text()

    assert text == build_index.with_tables(text), "run python alerts/build_index.py"
