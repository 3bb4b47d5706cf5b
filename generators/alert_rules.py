"""The alerts and their rules, and the tables of alerts/README.md."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from exporter.vocabulary.thresholds import defaults
from generators.files import ROOT
from generators.markdown import table

ALERTS: Final = ROOT / "alerts"
SEVERITIES: Final = ["critical", "warning", "info"]


@cache
def rules(path: Path) -> list[dict[str, Any]]:
    """Return all rules of a rule file, in order."""
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def rule_files() -> list[Path]:
    """Return the rule files in alphabetical order."""
    return sorted((ALERTS / "rules").glob("*.yaml"))


def all_rules() -> Iterator[dict[str, Any]]:
    """Yield the rules of all files."""
    for path in rule_files():
        yield from rules(path)


def alerts() -> dict[str, list[dict[str, Any]]]:
    """Return the rules of each alert by name: more than one if severities differ."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rule in all_rules():
        if "alert" in rule:
            found.setdefault(rule["alert"], []).append(rule)
    return dict(sorted(found.items()))


def severities(rule: dict[str, Any]) -> list[str]:
    """Return the severities of an alert *rule*: its label, else those that its series may have."""
    return re.findall("|".join(SEVERITIES), str(rule.get("labels") or rule["expr"]))


def alerts_table() -> str:
    """Return one row per alert, with the first sentence of its runbook."""
    rows = []
    for name, found in alerts().items():
        runbook = (ALERTS / "runbooks" / f"{name}.md").read_text()
        meaning = runbook.split("## Meaning\n\n")[1].split("\n")[0]
        told = {each for rule in found for each in severities(rule)}
        severity = ", ".join(sorted(told, key=SEVERITIES.index))
        pending = ", ".join(dict.fromkeys(rule.get("for", "0s") for rule in found))
        rows.append((f"[{name}](runbooks/{name}.md)", severity, pending, meaning))
    return table(("alert", "severity", "for", "meaning"), rows)


def files_table() -> str:
    """Return one row per rule file, with its first line."""
    rows = [
        (
            f"[{path.name}](rules/{path.name})",
            str(len(rules(path))),
            path.read_text().split("\n")[0].removeprefix("# "),
        )
        for path in rule_files()
    ]
    return table(("file", "rules", "topic"), rows)


def thresholds_table() -> str:
    """Return one row per threshold."""
    rows = ((f"`{each.name}`", f"{each.value:.12g}", each.reason) for each in defaults().values())
    return table(("threshold", "default", "reason"), rows)
