"""The committed dashboards, taken apart for the tests."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
# All clusters and nodes, and the first rank.
DEFAULTS: Final = {
    "cluster": ".*",
    "instance": ".*",
    "rank": "0",
    "gpu": ".*",
    "__rate_interval": "1m",
    "__rate_interval_ms": "60000",
    "__interval": "15s",
    "__range": "30m",
}
JSON_FILES: Final = sorted((ROOT / "dashboards" / "json").glob("*.json"))


@dataclass(frozen=True, slots=True)
class Target:
    """One query of one panel."""

    dashboard: str
    panel: str
    ref: str
    expr: str

    def substituted(self, job_id: str, **choices: str) -> str:
        """Return the expression as Grafana would send it."""
        return substituted(self.expr, job_id, **choices)


def substituted(expr: str, job_id: str, **choices: str) -> str:
    """Return an expression as Grafana would send it, for a scrape interval of 15 s.

    *choices* are those of further variables, such as rank="5".
    """
    for name, value in {"job_id": job_id, **DEFAULTS, **choices}.items():
        expr = re.sub(rf"\${name}\b", value.replace("\\", r"\\"), expr)
    # "$1" is label_replace's; Grafana leaves it alone.
    assert not re.search(r"\$\D", expr), f"a variable that no test substitutes: {expr}"
    return expr


def dashboard_panels(dashboard: str) -> list[dict[str, Any]]:
    """Return the panels of the dashboard in the file of that name."""
    (path,) = (path for path in JSON_FILES if path.stem == dashboard)
    return panels(path)


def named(legend: str, labels: Mapping[str, str]) -> str:
    """Return the name of a series in a panel."""
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), legend)


def load(path: Path) -> dict[str, Any]:
    """Return a dashboard as Grafana would read it."""
    dashboard: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return dashboard


def panels(path: Path) -> list[dict[str, Any]]:
    """Return a dashboard's panels, those of collapsed rows too, without the rows' headings."""
    return [panel for panel in everything(path) if panel["type"] != "row"]


def everything(path: Path) -> list[dict[str, Any]]:
    """Return a dashboard's panels and rows; a collapsed row contains its panels."""
    return [one for outer in load(path)["panels"] for one in (outer, *(outer.get("panels") or ()))]


def targets() -> Iterator[Target]:
    """Yield every query of every committed dashboard, annotations included."""
    for path in JSON_FILES:
        for panel in panels(path):
            for target in panel["targets"]:
                yield Target(path.stem, panel["title"], target["refId"], target["expr"])
        for annotation in load(path)["annotations"]["list"]:
            yield Target(path.stem, f"annotation {annotation['name']}", "", annotation["expr"])


def metric_names(expr: str) -> set[str]:
    """Return the rankskew metrics and recorded series in *expr*."""
    return set(re.findall(r"\b(?:\w+:)?rankskew_\w+(?::\w+)?", expr))
