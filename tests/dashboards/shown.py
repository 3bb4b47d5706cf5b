"""What the panels of a dashboard show, by the answers of a real Prometheus."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fleet_simulator.stack.parts import PrometheusProcess, QueryResult
from tests.dashboards.dashboard_files import JSON_FILES, Target, panels

LABEL = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True)
class Shown:
    """One series of a panel: its name there, and its value."""

    name: str
    value: float


def shown(
    prometheus: PrometheusProcess, dashboard: str, title: str, job_id: str, **choices: str
) -> list[Shown]:
    """Return what the panel *title* shows for a job, in the order of its queries."""
    (panel,) = (panel for panel in dashboard_panels(dashboard) if panel["title"] == title)
    return list(_series(prometheus, panel, job_id, choices))


def dashboard_panels(dashboard: str) -> list[dict[str, Any]]:
    """Return the panels of the dashboard in the file of that name."""
    (path,) = (path for path in JSON_FILES if path.stem == dashboard)
    return panels(path)


def _series(
    prometheus: PrometheusProcess, panel: dict[str, Any], job_id: str, choices: dict[str, str]
) -> Iterator[Shown]:
    for target in panel["targets"]:
        query = Target("", panel["title"], target["refId"], target["expr"])
        for series in prometheus.query(query.substituted(job_id, **choices)):
            yield Shown(_name(target.get("legendFormat", ""), series), series.value)


def _name(legend: str, series: QueryResult) -> str:
    return LABEL.sub(lambda label: series.labels.get(label[1], ""), legend)
