"""Says on a panel what it needs: by default exporters show only the core of their series."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from exporter.scrape.levels import LEVELS, PARTS, Level, exposed_name
from generators.metrics import families_by_collector

SELECTED: Final = re.compile(r"\b(rankskew_\w+)(?:{([^}]*)})?")


@cache
def collectors() -> Mapping[str, str]:
    """Return the collector of each series, by the name of its metric."""
    return {
        exposed_name(family): name
        for name, _, families in families_by_collector()
        for family in families
    }


def detail_of(expr: str) -> set[str]:
    """Return the collectors whose detail *expr* reads."""
    found = {name for name, selector in SELECTED.findall(expr) if _is_detail(name, selector)}
    return {collectors()[name] for name in found if name in collectors()}


def _is_detail(name: str, selector: str) -> bool:
    if name in PARTS:
        label, values, _ = PARTS[name]
        return not any(f'{label}="{value}"' in selector for value in values)
    return LEVELS.get(name, Level.DETAIL) is Level.DETAIL


def say_what_it_needs(panel: dict[str, Any]) -> None:
    """Name, in the description of a *panel* with queries, the flag without which it is empty."""
    needed = [detail_of(target["expr"]) for target in panel.get("targets", ())]
    flag = _flag(name for names in needed for name in names)
    if flag is None:
        return
    if not all(needed):
        panel["description"] += f" Shows more with {flag}."
        return
    panel["description"] += f" Needs {flag}."
    defaults = panel["fieldConfig"]["defaults"]
    if "noValue" in defaults:
        defaults["noValue"] += f", or the exporter lacks {flag}"


def _flag(names: Iterable[str]) -> str | None:
    every = sorted(set(names))
    return f"--series.detail={','.join(every)}" if every else None
