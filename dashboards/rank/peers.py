"""The panels of the rank dashboard that show its steps, GPU and processes beside its peers'."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.rank.series import OfRanks, beside_peers, gauge, of_gpu, per_second, per_step
from dashboards.shared.panels import time_panel

NO_GPU: Final = "No GPU telemetry for this rank"
NO_HOST: Final = "No exporter sees the process of this rank"
NO_STEP: Final = "No step was finished"
NOT_REPORTED: Final = "The training loop does not report this"

# Title, what it shows, unit, and the text if there is nothing to show.
Panel = tuple[str, str, str, str, OfRanks]

STEPS: Final[Sequence[Panel]] = (
    (
        "Own work per step",
        "Time per step in which this rank did not wait for others, beside its peers. The rank "
        "that works longest is the one that the others wait for.",
        "s",
        NO_STEP,
        per_step("rankskew_busy_seconds_total"),
    ),
    (
        "Wait per step",
        "Time per step that this rank waits in collectives, beside its peers. The rank that "
        "waits least is the one that the others wait for.",
        "s",
        NO_STEP,
        per_step("rankskew_stage_seconds_total", 'stage="sync",'),
    ),
    (
        "Tokens per step",
        "Tokens in this rank's batches, beside its peers'. A rank that gets more works longer, "
        "and nothing is wrong with its GPU.",
        "short",
        NOT_REPORTED,
        per_step("rankskew_tokens_total"),
    ),
)
GPU: Final[Sequence[Panel]] = (
    (
        "GPU utilisation",
        "Share of the time in which a kernel ran on this rank's GPU, beside its peers' GPUs. A "
        "GPU that waits in a collective spins and looks busy.",
        "percentunit",
        NO_GPU,
        of_gpu("rankskew_gpu_utilization_ratio"),
    ),
    (
        "SM clock",
        "Clock of the SMs of this rank's GPU, beside its peers' GPUs. A lower clock makes all "
        "that it computes take longer; the panel on throttling shows why.",
        "hertz",
        NO_GPU,
        of_gpu("rankskew_gpu_clock_hertz", 'clock="sm",'),
    ),
    (
        "GPU temperature",
        "Temperature of the die of this rank's GPU, beside its peers' GPUs. From its limit on, "
        "the driver lowers the clocks.",
        "celsius",
        NO_GPU,
        of_gpu("rankskew_gpu_temperature_celsius", 'sensor="gpu",'),
    ),
    (
        "GPU power",
        "Power that this rank's GPU draws, beside its peers' GPUs. Much less than they: it has "
        "nothing to do, or it is held back.",
        "watt",
        NO_GPU,
        of_gpu("rankskew_gpu_power_watts"),
    ),
    (
        "GPU memory used",
        "Bytes in use on this rank's GPU, by every process, beside its peers' GPUs. More than "
        "they: look for a foreign process, or a cache that grows.",
        "bytes",
        NO_GPU,
        of_gpu("rankskew_gpu_memory_used_bytes"),
    ),
    (
        "PCIe received",
        "Bytes per second to this rank's GPU over PCIe, beside its peers' GPUs. Less than they "
        "while it is slow in h2d: a slow link.",
        "Bps",
        NO_GPU,
        of_gpu("rankskew_gpu_pcie_receive_bytes_per_second"),
    ),
)
HOST: Final[Sequence[Panel]] = (
    (
        "CPUs used by its process",
        "CPUs that the rank's own process uses, beside its peers'. More than one: it does work "
        "on the host that may belong into the loader's workers.",
        "none",
        NO_HOST,
        per_second("rankskew_rank_cpu_seconds_total", 'process="main",'),
    ),
    (
        "CPUs used by its workers",
        "CPUs that all processes use which the rank started, such as the workers of its "
        "DataLoader, beside its peers'.",
        "none",
        NO_HOST,
        per_second("rankskew_rank_cpu_seconds_total", 'process="workers",'),
    ),
    (
        "Waiting for a CPU",
        "Share of the time in which the main thread of the rank was ready to run but had no "
        "CPU, beside its peers'. Anything but 0 makes the rank late.",
        "percentunit",
        NO_HOST,
        per_second("rankskew_rank_run_queue_seconds_total", 'process="main",'),
    ),
    (
        "CPU quota used up",
        "Periods per second in which the CPU quota of the rank's cgroup was used up, so that all "
        "its processes stood still. A period is usually a tenth of a second.",
        "none",
        "No CPU quota, or no exporter sees the process of this rank",
        per_second("rankskew_rank_cgroup_throttled_periods_total"),
    ),
    (
        "Read from storage",
        "Bytes per second that the rank and its workers read from storage, beside its peers; "
        "what is in the page cache does not count.",
        "Bps",
        NO_HOST,
        per_second("rankskew_rank_read_bytes_total"),
    ),
    (
        "Major page faults",
        "Page faults per second for which a page had to be read from storage, beside its peers'. "
        "Many of them: the node is short of memory.",
        "none",
        NO_HOST,
        per_second("rankskew_rank_major_faults_total"),
    ),
    (
        "Garbage collection",
        "Share of the time for which Python's garbage collection paused the rank, beside its "
        "peers. They wait for it meanwhile.",
        "percentunit",
        "The probe reports no garbage collection",
        per_second("rankskew_gc_pause_seconds_total"),
    ),
    (
        "CUDA memory reserved",
        "Bytes that the rank's CUDA allocator holds, used or cached, beside its peers. A rank "
        "that holds more than they do has other tensors, or fragmentation.",
        "bytes",
        "The probe reports no CUDA memory",
        gauge("rankskew_cuda_memory_reserved_bytes"),
    ),
)


def beside(panels: Sequence[Panel], span: int) -> Sequence[timeseries.Panel]:
    """Return one panel for each of *panels*, with the rank in front of its peer group."""
    return tuple(
        beside_peers(time_panel(title, text, unit, span).no_value(nothing), series)
        for title, text, unit, nothing, series in panels
    )
