"""The series that the panels about Rankskew itself read, and the shape of its lines."""

from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.shared.panels import PEERS_COLOUR, WAIT_COLOUR, drawn, fixed, time_panel
from dashboards.shared.variables import CLUSTER

TARGET: Final = "on (cluster, job, instance)"
_BUILDS: Final = "rankskew_exporter_build_info"
# Exporters that answer, and all that did in the last six hours, as for RankskewExporterDown.
ANSWERING: Final = f"{_BUILDS}{{{CLUSTER}}}"


def seen(selector: str) -> str:
    """Return a series for each exporter that answered in the last six hours."""
    lately = f"last_over_time({_BUILDS}{{{selector}}}[6h])"
    return f"group by (cluster, job, instance) ({lately})"


EXPORTERS: Final = seen(CLUSTER)


def of_exporters(series: str) -> str:
    """Return *series*, which any target may have, of the targets that are exporters."""
    return f"{series} and {TARGET} {ANSWERING}"


def spread(title: str, description: str, unit: str, series: str, span: int) -> timeseries.Panel:
    """Return the largest and the median of *series*, which has one value per node."""
    return drawn(
        time_panel(title, description, unit, span).height(7),
        (f"max({series})", "highest", [fixed(WAIT_COLOUR)]),
        (f"quantile(0.5, {series})", "median", [fixed(PEERS_COLOUR)]),
    )
