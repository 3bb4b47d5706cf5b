"""The job dashboard's row on the GPUs of the ranks."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.job.peers import against_itself, against_peers
from dashboards.job.series import RANK_GPU, Series, gpu_mean, of_rank
from dashboards.shared.panels import POINTS_OF_ALL, query, time_panel
from dashboards.shared.variables import CLUSTER

NO_GPU: Final = "No GPU telemetry for the ranks of this job"

# Reasons that slow a GPU down without anyone's intent.
THROTTLED: Final = (
    "rate(rankskew_gpu_throttle_seconds_total"
    f'{{reason=~"sw_power_cap|sync_boost|.+_slowdown",{CLUSTER}}}[$__rate_interval])'
)


def gpu_panels() -> Sequence[timeseries.Panel]:
    """Return the panels that compare a late rank's GPU with its peers'."""
    return (
        _gpu_panel(
            "GPU utilisation",
            "Share of the time in which a kernel ran. A rank that is slow loading data leaves "
            "its GPU idle; a waiting GPU spins in the collective and looks busy.",
            "percentunit",
            _utilisation,
            "bottomk",
        ).max(1),
        _gpu_panel(
            "GPU memory used",
            "Share of the GPU's memory in use. Peers use equal shares; a rank that uses more may "
            "be retrying allocations or sharing its GPU.",
            "percentunit",
            _memory,
            "topk",
        ).max(1),
        _throttle(),
        _gpu_panel(
            "PCIe traffic",
            "Bytes per second received and sent over PCIe. A rank that is slow in h2d and has "
            "less traffic than its peers has a slow link.",
            "Bps",
            _pcie,
            "bottomk",
        ),
    )


def symmetry_panels() -> Sequence[timeseries.Panel]:
    """Return the panels that show whether all GPUs of the job do and hold the same."""
    return (
        _symmetry(
            "Symmetry of GPU utilisation",
            "The most, the median and the least used GPU of the job. In a healthy job the three "
            "lines lie together; a gap below is a GPU that has nothing to do.",
            _utilisation,
        ),
        _symmetry(
            "Symmetry of GPU memory",
            "The fullest, the median and the emptiest GPU of the job, as shares of its memory. "
            "The fullest is the one that runs out first.",
            _memory,
        ),
    )


def _utilisation(at: str) -> str:
    return gpu_mean("rankskew_gpu_utilization_ratio")(at)


def _memory(at: str) -> str:
    # It changes slowly, so the last reading will do.
    used = f"rankskew_gpu_memory_used_bytes{{{CLUSTER}}}{at}"
    return f"({used} / rankskew_gpu_memory_total_bytes{{{CLUSTER}}}{at})"


def _pcie(at: str) -> str:
    received = gpu_mean("rankskew_gpu_pcie_receive_bytes_per_second")(at)
    return f"({received} + {gpu_mean('rankskew_gpu_pcie_transmit_bytes_per_second')(at)})"


def _symmetry(title: str, description: str, series: Series) -> timeseries.Panel:
    panel = time_panel(title, description, "percentunit", span=12).max(1).no_value(NO_GPU)
    return against_itself(panel, of_rank(series)(""))


def _gpu_panel(
    title: str, description: str, unit: str, gpu_series: Series, choose: str
) -> timeseries.Panel:
    panel = time_panel(title, description, unit, span=6).no_value(NO_GPU)
    return against_peers(panel, of_rank(gpu_series), choose)


def _throttle() -> timeseries.Panel:
    return (
        time_panel(
            "GPU clocks throttled",
            "Share of the time in which heat, power or a slowdown signal throttled a GPU, worst "
            "first. Idle clocks and manually set clocks are left out.",
            "percentunit",
            span=6,
        )
        .max(1)
        .max_data_points(POINTS_OF_ALL)
        .no_value("No GPU of this job is throttled, or none is measured")
        .with_target(
            query(
                f"topk(6, ({THROTTLED} and on (cluster, instance, gpu_uuid) {RANK_GPU}) > 0.01)",
                "{{instance}} GPU {{gpu}} {{reason}}",
            )
        )
    )
