"""The panels of the rank dashboard: its steps, its GPU and its host, beside its peers."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.panels import (
    LATE_COLOUR,
    STAGE_COLOURS,
    column,
    join_rows,
    query,
    rows,
    stacked_panel,
    table_panel,
    table_sort,
    time_panel,
)
from dashboards.rank_series import (
    THIS,
    THIS_GPU,
    OfRanks,
    beside_peers,
    gauge,
    of_gpu,
    of_peers,
    per_second,
    per_step,
)
from dashboards.variables import CLUSTER, ONE_RANK

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


def stages() -> timeseries.Panel:
    """Return the rank's step over time, divided into its stages."""
    each = per_step("rankskew_stage_seconds_total")(ONE_RANK)
    return (
        stacked_panel(
            "Stages of its step",
            "Where the time of each step of this rank goes; the stages add up to the step. Sync "
            "is the wait for others. A stage that grows is where the rank began to be late.",
            "s",
            span=16,
            colours={f"^{stage}$": colour for stage, colour in STAGE_COLOURS.items()},
        )
        .height(10)
        .no_value(NO_STEP)
        .with_target(query(f"sum by (cluster, stage) ({each})", "{{stage}}"))
    )


def by_stage() -> table.Panel:
    """Return each stage of the rank's step beside the median of its peers."""
    each = per_step("rankskew_stage_seconds_total")
    panel = (
        table_panel(
            "Beside its peers, by stage",
            "Each stage of a step of this rank, the median of its peer group, and the GPUs that "
            "wait because of the difference.",
            "none",
            span=8,
        )
        .height(10)
        .no_value(NO_STEP)
        .with_target(rows(f"sum by (cluster, stage) ({each(ONE_RANK)})", "A"))
        .with_target(rows(f"quantile by (cluster, stage) (0.5, {of_peers(each)})", "B"))
        .with_target(
            rows(
                "sum by (cluster, stage)"
                f" (rank_stage:rankskew_gpus_lost:sum{{{ONE_RANK}}}) or 0 * sum by"
                f" (cluster, stage) ({each(ONE_RANK)})",
                "C",
            )
        )
    )
    join_rows(
        panel,
        "stage",
        {
            "stage": column("Stage", width=90),
            "Value #A": column("This rank", "s", decimals=1, width=100),
            "Value #B": column("Its peers", "s", decimals=1, width=100),
            "Value #C": column("GPUs lost", "none", decimals=2, colour=LATE_COLOUR),
        },
    )
    return panel.sort_by([table_sort("This rank")])


def lines() -> timeseries.Panel:
    """Return where in the code the rank was found while it was late."""
    return (
        time_panel(
            "Lines of code",
            "The line of your code in which the late rank's stack was found most often, for each "
            "stage, and the share of the samples that found it there. Only while it is late.",
            "percentunit",
            span=6,
        )
        .max(1)
        .no_value("The rank is not late")
        .with_target(query(f"rankskew_late_line_ratio{{{ONE_RANK}}}", "{{stage}}: {{place}}"))
    )


def throttled() -> timeseries.Panel:
    """Return for which reasons the clocks of the rank's GPU were throttled."""
    reasons = (
        f"rate(rankskew_gpu_throttle_seconds_total{{{CLUSTER}}}[$__rate_interval])"
        f" and on (cluster, instance, gpu_uuid) {THIS_GPU}"
    )
    return (
        time_panel(
            "GPU clocks throttled",
            "Share of the time in which the clocks of this rank's GPU were throttled, by reason. "
            "gpu_idle is a GPU without work, not a fault.",
            "percentunit",
            span=6,
        )
        .max(1)
        .no_value("Not throttled, or not measured")
        .with_target(query(f"({reasons}) > 0.001", "{{reason}}"))
    )


def node_pressure() -> timeseries.Panel:
    """Return how long the tasks of the rank's node wait for CPU, memory and I/O."""
    pressure = (
        f"rate(rankskew_node_pressure_waiting_seconds_total{{{CLUSTER}}}[$__rate_interval])"
        f" and on (cluster, instance) {THIS}"
    )
    return (
        time_panel(
            "Pressure on its node",
            "Share of the time in which some task of the node waited for the resource. The "
            "rank's node has its own dashboard: click the node above.",
            "percentunit",
            span=6,
        )
        .max(1)
        .no_value("The kernel of the node measures no pressure")
        .with_target(query(pressure, "{{resource}}"))
    )


def identity() -> table.Panel:
    """Return who the rank is: its place in the job and its software."""
    panel = (
        table_panel(
            "Who it is",
            "The rank's place in the job's parallelism, how it is timed, the attempt of the "
            "launcher, and the versions that it runs.",
            "string",
            span=24,
        )
        .height(4)
        .no_value("The rank is not seen")
        .with_target(rows(THIS, "A"))
        .with_target(rows(f"rankskew_runtime_info{{{ONE_RANK}}}", "B"))
        .with_target(rows(f"rankskew_gpu_rank_info{{{ONE_RANK}}}", "C"))
    )
    names = {
        "rank": "Rank",
        "local_rank": "Local",
        "peer_group": "Peer group",
        "dp": "DP",
        "tp": "TP",
        "pp": "PP",
        "clock": "Timed by",
        "level": "Level",
        "attempt": "Attempt",
        "torch": "torch",
        "cuda": "CUDA",
        "nccl": "NCCL",
        "driver": "Driver",
        "gpu_uuid": "GPU",
    }
    join_rows(
        panel,
        "rank",
        {
            name: column(title, "string", width=None if name == "gpu_uuid" else 95)
            for name, title in names.items()
        },
    )
    return panel
