"""How the job dashboard draws a few ranks beside all of their peers."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.job.series import Series, late_lately, others, peers
from dashboards.shared.links import LABEL, to_rank
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    POINTS_OF_ALL,
    WAIT_COLOUR,
    drawn,
    fixed,
    line,
    shades,
)


def against_peers(panel: timeseries.Panel, series: Series, choose: str) -> timeseries.Panel:
    """Draw late ranks red, the next ones to become late in blue and the median dashed.

    *choose* is the end at which late ranks are: topk or bottomk.
    """
    return drawn(
        panel.max_data_points(POINTS_OF_ALL),
        (
            late_lately(series),
            "rank {{rank}} (late)",
            [fixed(LATE_COLOUR), *line(3), to_rank(LABEL % "rank")],
        ),
        (others(series, choose), "rank {{rank}}", [shades(WAIT_COLOUR), to_rank(LABEL % "rank")]),
        (
            peers(series("")),
            "median of peer group {{peer_group}}",
            [fixed(PEERS_COLOUR), *line(2, dashed=True)],
        ),
    )


def against_itself(panel: timeseries.Panel, series: str) -> timeseries.Panel:
    """Draw the least, the median and the most of *series* over all ranks of the job."""
    return drawn(
        panel.max_data_points(POINTS_OF_ALL),
        (f"max by (cluster) ({series})", "most", [fixed(WAIT_COLOUR)]),
        (
            f"quantile by (cluster) (0.5, {series})",
            "median",
            [fixed(PEERS_COLOUR), *line(2, dashed=True)],
        ),
        (f"min by (cluster) ({series})", "least", [fixed(WAIT_COLOUR)]),
    )
