"""What Alertmanager would have sent with the shipped configuration."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import yaml

from exporter.bundle import bundled
from rankskew.report.incidents import Firing
from rankskew.report.times import Span, merged, without

# Its receiver is not the pager.
NOTES: Final = "notes"
_MATCHER: Final = re.compile(r'^(\w+)(=~|=)"(.*)"$')


@dataclass(frozen=True, slots=True)
class Inhibition:
    """Alerts like *source* hold back alerts like *target* that have the same *equal* labels."""

    source: Mapping[str, re.Pattern[str]]
    target: Mapping[str, re.Pattern[str]]
    equal: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PagerMessage:
    """One message: the alerts of one job that fired together, and when."""

    cluster: str
    job_id: str
    span: Span
    severity: str


def sent(fired: Sequence[Firing]) -> list[Firing]:
    """Return *fired* without the times in which another alert explains an alert."""
    left = [list(each.spans) for each in fired]
    for rule in inhibitions():
        sources: dict[tuple[str, ...], list[Span]] = defaultdict(list)
        for each in fired:
            if _is(each, rule.source):
                sources[_values(each, rule.equal)] += each.spans
        for n, each in enumerate(fired):
            explained = sources.get(_values(each, rule.equal))
            if explained and _is(each, rule.target):
                left[n] = without(left[n], merged(explained))
    return [Firing(each.labels, spans) for each, spans in zip(fired, left, strict=True)]


def pages(told: Sequence[Firing], gap_seconds: float) -> list[PagerMessage]:
    """Return the pages for what was *told*: one for each job while any of its alerts fires."""
    groups: dict[tuple[str, str], list[Firing]] = defaultdict(list)
    for each in told:
        if not is_note(each):
            group = each.labels.get("cluster", ""), each.labels.get("job_id", "")
            groups[group].append(each)
    found = [
        PagerMessage(*group, whole, _worst(those, whole))
        for group, those in groups.items()
        for whole in merged((span for each in those for span in each.spans), gap_seconds)
    ]
    return sorted(found, key=lambda page: page.span)


def is_note(fired: Firing) -> bool:
    """Return whether what *fired* goes to the notes, and wakes nobody."""
    return any(_is(fired, matchers) for matchers in _notes())


@cache
def _notes() -> tuple[Mapping[str, re.Pattern[str]], ...]:
    """Return the matchers of each route of the shipped configuration that leads to the notes."""
    routes = _configuration()["route"]["routes"]
    return tuple(_matchers(each["matchers"]) for each in routes if each["receiver"] == NOTES)


@cache
def inhibitions() -> tuple[Inhibition, ...]:
    """Return the inhibitions of the shipped Alertmanager configuration."""
    return tuple(
        Inhibition(
            _matchers(rule["source_matchers"]),
            _matchers(rule["target_matchers"]),
            tuple(rule["equal"]),
        )
        for rule in _configuration()["inhibit_rules"]
    )


@cache
def _configuration() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(
        bundled("alerts/alertmanager.yaml").read_text(encoding="utf-8")
    )
    return found


def _matchers(texts: Sequence[str]) -> dict[str, re.Pattern[str]]:
    found = {}
    for text in texts:
        match = _MATCHER.match(text)
        if match is None:
            raise ValueError(f"alerts/alertmanager.yaml: no matcher: {text}")
        name, operator, value = match.groups()
        found[name] = re.compile(value if operator == "=~" else re.escape(value))
    return found


def _is(each: Firing, matchers: Mapping[str, re.Pattern[str]]) -> bool:
    return all(
        pattern.fullmatch(each.labels.get(name, "")) is not None
        for name, pattern in matchers.items()
    )


def _values(each: Firing, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(each.labels.get(name, "") for name in names)


def _worst(those: Sequence[Firing], whole: Span) -> str:
    severities = {
        each.labels.get("severity")
        for each in those
        if any(whole[0] <= span[0] < whole[1] for span in each.spans)
    }
    return "critical" if "critical" in severities else "warning"
