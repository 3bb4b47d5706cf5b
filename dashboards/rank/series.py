"""The series that the rank dashboard reads, and how it draws a rank beside its peers."""

from collections.abc import Callable
from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.shared.panels import PEERS_COLOUR, POINTS_OF_ALL, Override, fixed, line, query
from dashboards.shared.variables import CLUSTER, JOB, ONE_RANK

# An expression over the ranks of a selector: ONE_RANK, or JOB for all of them.
OfRanks = Callable[[str], str]

THIS: Final = f"rankskew_rank_info{{{ONE_RANK}}}"
THIS_GPU: Final = f"rank:rankskew_gpu:group{{{ONE_RANK}}}"
RANK_COLOUR: Final = "#E68A00"
_GPU: Final = "cluster, instance, gpu_uuid"


def per_second(counter: str, only: str = "") -> OfRanks:
    """Return the rate of a *counter* of each rank; *only* is a further selector."""
    return lambda ranks: f"rate({counter}{{{only}{ranks}}}[$__rate_interval])"


def per_step(counter: str, only: str = "") -> OfRanks:
    """Return the increase of a *counter* of each rank, per step."""
    return lambda ranks: (
        f"(rate({counter}{{{only}{ranks}}}[$__rate_interval])"
        " / ignoring (phase, stage) group_left ()"
        f" (rate(rankskew_steps_total{{{ranks}}}[$__rate_interval]) > 0))"
    )


def gauge(name: str, only: str = "") -> OfRanks:
    """Return the value of the gauge *name* of each rank."""
    return lambda ranks: f"{name}{{{only}{ranks}}}"


def of_gpu(metric: str, only: str = "") -> OfRanks:
    """Return *metric* of the GPU that each rank runs on, mean of the last scrapes."""
    return lambda ranks: (
        f"rank:rankskew_gpu:group{{{ranks}}} * on ({_GPU}) group_left () max by ({_GPU})"
        f" (avg_over_time({metric}{{{only}{CLUSTER}}}[$__rate_interval]))"
    )


def of_peers(series: OfRanks) -> str:
    """Return *series* of all ranks in the peer group of this one."""
    return f"({series(JOB)}) and on (cluster, peer_group) {THIS}"


def beside_peers(panel: timeseries.Panel, series: OfRanks) -> timeseries.Panel:
    """Draw this rank in a strong line, and its peer group as a median in a band."""
    peers = of_peers(series)
    panel.max_data_points(POINTS_OF_ALL)
    panel.with_target(query(series(ONE_RANK), "rank $rank", "A"))
    for ref, quantile, name in (
        ("B", 0.9, "90 %"),
        ("C", 0.5, "median of its peers"),
        ("D", 0.1, "10 %"),
    ):
        panel.with_target(query(f"quantile by (cluster) ({quantile}, {peers})", name, ref))
    edge = [fixed(PEERS_COLOUR), Override(id_val="custom.lineWidth", value=0)]
    return (
        panel.override_by_query("A", [fixed(RANK_COLOUR), *line(3)])
        .override_by_query(
            "B",
            [
                *edge,
                Override(id_val="custom.fillBelowTo", value="10 %"),
                Override(id_val="custom.fillOpacity", value=20),
            ],
        )
        .override_by_query("C", [fixed(PEERS_COLOUR), *line(2, dashed=True)])
        .override_by_query("D", edge)
    )
