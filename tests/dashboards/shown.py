"""What the panels of a dashboard show, by the answers of a real Prometheus."""

from dataclasses import dataclass

from devstack.parts import PrometheusProcess
from tests.dashboards.dashboard_files import dashboard_panels, named, substituted


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
    return [
        Shown(named(target.get("legendFormat", ""), series.labels), series.value)
        for target in panel["targets"]
        for series in prometheus.query(substituted(target["expr"], job_id, **choices))
    ]
