"""Thresholds: one list for the rules and for the exporter, with the operator's overrides."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from exporter.errors import UsageError, text_of
from exporter.vocabulary.words import LOADER

FILE: Final = Path(__file__).with_name("thresholds.yaml")
# What an operator records to override one; its labels are *name* and, for one job, *job_id*.
OVERRIDE: Final = "rankskew:threshold:override"


@dataclass(frozen=True, slots=True)
class Threshold:
    """The default *value* of a threshold, and the *reason* for it."""

    name: str
    value: float
    reason: str


@cache
def defaults() -> Mapping[str, Threshold]:
    """Return every threshold by its name."""
    said: Mapping[str, Any] = yaml.load(FILE.read_text(encoding="utf-8"), LOADER)
    return {
        name: Threshold(name, float(each["value"]), each["reason"]) for name, each in said.items()
    }


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds with *overrides*, by the job ("" is every job) and the name."""

    overrides: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def value(self, name: str, job_id: str = "") -> float:
        """Return the threshold for the job: its own override, that for all jobs, or the default."""
        for who in (job_id, ""):
            if (who, name) in self.overrides:
                return self.overrides[who, name]
        return defaults()[name].value


def read_overrides(path: Path) -> Thresholds:
    """Return the thresholds with the overrides in the rule file at *path*.

    It is the file that Prometheus loads: its records named OVERRIDE count, each with a number as
    its expression (`vector(0.02)` too). Raises UsageError, with one sentence.
    """
    try:
        said = yaml.safe_load(text_of(path)) or {}
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    overrides: dict[tuple[str, str], float] = {}
    for rule in _rules(said, path):
        if rule.get("record") == OVERRIDE:
            labels = rule.get("labels") or {}
            name = str(labels.get("name", ""))
            if name not in defaults():
                known = ", ".join(defaults())
                raise UsageError(f"{path} overrides {name!r}, which is none of {known}")
            overrides[str(labels.get("job_id", "")), name] = _number(rule.get("expr"), name, path)
    return Thresholds(overrides)


def _rules(said: Any, path: Path) -> list[Mapping[str, Any]]:
    try:
        return [rule for group in said["groups"] for rule in group["rules"]]
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a rule file of Prometheus: it has no groups") from error


def _number(expression: Any, name: str, path: Path) -> float:
    text = str(expression).strip()
    if text.startswith("vector(") and text.endswith(")"):
        text = text[len("vector(") : -1]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(
            f"{path} overrides {name} with {expression!r}, which the exporter cannot evaluate: "
            "write a number, such as vector(0.02)"
        )
    return value
