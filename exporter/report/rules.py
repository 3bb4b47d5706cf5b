"""Which of the shipped alerts a Prometheus evaluates, and how often."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import yaml

from exporter.bundle import bundled
from exporter.client.fetch import Trouble
from exporter.client.fields import number, objects, text
from exporter.client.prometheus import Prometheus

# What docs/operating.md recommends.
USUAL_INTERVAL_SECONDS: Final = 15.0
OURS: Final = "Rankskew"


@dataclass(frozen=True, slots=True)
class Rules:
    """The alerts that are *loaded*, None if that is not known, and the shortest interval of them.

    *is_known*: the interval was read, not assumed.
    """

    interval_seconds: float
    is_known: bool
    loaded: frozenset[str] | None

    @property
    def missing(self) -> list[str]:
        """Return the shipped alerts that are not loaded now."""
        return [] if self.loaded is None else sorted(shipped() - self.loaded)


def read_rules(prometheus: Prometheus) -> Rules:
    """Return what *prometheus* says; some systems that answer its queries do not say."""
    try:
        groups = prometheus.alert_groups()
    except Trouble:
        return Rules(USUAL_INTERVAL_SECONDS, False, None)
    ours = {n: each for n, each in enumerate(groups) if _alerts(each)}
    loaded = frozenset(name for each in ours.values() for name in _alerts(each))
    intervals = [number(each.get("interval")) for each in ours.values()]
    known = [each for each in intervals if each]
    return Rules(min(known, default=USUAL_INTERVAL_SECONDS), bool(known), loaded)


@cache
def shipped() -> frozenset[str]:
    """Return the names of the alerts that belong to this release."""
    return frozenset(
        rule["alert"]
        for path in bundled("alerts/rules").glob("*.yaml")
        for group in _groups(path.read_text(encoding="utf-8"))
        for rule in group["rules"]
        if "alert" in rule
    )


def _groups(content: str) -> Sequence[Mapping[str, Any]]:
    groups: Sequence[Mapping[str, Any]] = yaml.safe_load(content)["groups"]
    return groups


def _alerts(group: Mapping[str, Any]) -> list[str]:
    names = [text(rule.get("name")) or "" for rule in objects(group.get("rules"))]
    return [name for name in names if name.startswith(OURS)]
