"""The series that the panels of the node dashboard read, and the shape of its GPU panels."""

from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.shared.panels import (
    LATE_COLOUR,
    WAIT_COLOUR,
    drawn,
    fixed,
    line,
    shades,
    time_panel,
)
from dashboards.shared.variables import NODE

GPU: Final = f'{NODE},gpu=~"$gpu"'
OF_GPU: Final = "on (cluster, instance, gpu_uuid)"
OF_RANK: Final = "on (cluster, job_id, rank)"

LATE: Final = f"rank:rankskew_late:ratio{{{NODE}}}"
LOST: Final = f"rank:rankskew_gpus_lost:sum{{{NODE}}}"
SUSPECT: Final = f"rank_stage:rankskew_hang_suspect:group{{{NODE}}}"
# While a job hangs, all its GPUs wait for the rank that is suspected.
HUNG: Final = (
    f"max by (cluster, job_id, instance) ({SUSPECT})"
    " * on (cluster, job_id) group_left () job:rankskew_world_size:max"
)
FAULT: Final = f"rankskew_gpu_fault{{{NODE}}}"
RANK_GPU: Final = f"rank:rankskew_gpu:group{{{NODE}}}"
# GPUs with a fault, and those of late ranks.
TROUBLED: Final = f"({FAULT} or {RANK_GPU} and {OF_RANK} {LATE})"


def gpu_panel(
    title: str, description: str, unit: str, series: str, none: str, span: int = 8
) -> timeseries.Panel:
    """Return a line for each GPU of *series*: red while it is faulty or its rank is late."""
    return drawn(
        time_panel(title, description, unit, span).height(7).no_value(none),
        (
            f"({series}) and {OF_GPU} {TROUBLED}",
            "GPU {{gpu}} (late or faulty)",
            [fixed(LATE_COLOUR), *line(2)],
        ),
        (f"({series}) unless {OF_GPU} {TROUBLED}", "GPU {{gpu}}", [shades(WAIT_COLOUR)]),
    )


def host_panel(
    title: str, description: str, unit: str, none: str = "Not measured"
) -> timeseries.Panel:
    """Return a panel on the host, in which nothing is drawn yet."""
    return time_panel(title, description, unit, span=8).height(7).no_value(none)


def rate(counter: str, selector: str = NODE) -> str:
    """Return the rate of a *counter* of the host."""
    return f"rate(rankskew_node_{counter}{{{selector}}}[$__rate_interval])"
