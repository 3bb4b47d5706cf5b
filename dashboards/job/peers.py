"""How the job dashboard draws a few ranks beside all of their peers."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.job.series import Series, late_lately, others, peers
from dashboards.shared.links import LABEL, to_rank
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    POINTS_OF_ALL,
    WAIT_COLOUR,
    fixed,
    line,
    query,
    shades,
)


def against_peers(panel: timeseries.Panel, series: Series, choose: str) -> timeseries.Panel:
    """Draw late ranks red, the next ones to become late in blue and the median dashed.

    *choose* is the end at which late ranks are: topk or bottomk.
    """
    return (
        panel.max_data_points(POINTS_OF_ALL)
        .with_target(query(late_lately(series), "rank {{rank}} (late)", "A"))
        .with_target(query(others(series, choose), "rank {{rank}}", "B"))
        .with_target(query(peers(series("")), "median of peer group {{peer_group}}", "C"))
        .override_by_query("A", [fixed(LATE_COLOUR), *line(3), to_rank(LABEL % "rank")])
        .override_by_query("B", [shades(WAIT_COLOUR), to_rank(LABEL % "rank")])
        .override_by_query("C", [fixed(PEERS_COLOUR), *line(2, dashed=True)])
    )


def against_itself(panel: timeseries.Panel, series: str) -> timeseries.Panel:
    """Draw the least, the median and the most of *series* over all ranks of the job."""
    return (
        panel.max_data_points(POINTS_OF_ALL)
        .with_target(query(f"max by (cluster) ({series})", "most", "A"))
        .with_target(query(f"quantile by (cluster) (0.5, {series})", "median", "B"))
        .with_target(query(f"min by (cluster) ({series})", "least", "C"))
        .override_by_query("A", [fixed(WAIT_COLOUR)])
        .override_by_query("B", [fixed(PEERS_COLOUR), *line(2, dashed=True)])
        .override_by_query("C", [fixed(WAIT_COLOUR)])
    )
