"""The figure behind each cause: its name, its unit, and the expression that measures it."""

from dataclasses import dataclass
from typing import Final

# What a figure is of: a rank, its GPU or its node.
RANK, GPU, NODE = "rank", "gpu", "node"
UNITS: Final = ("seconds", "share", "hertz", "bytes_per_second", "per_second", "celsius", "count")


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure in *unit*; WHERE in *expression* stands for the matchers of what it is *of*."""

    name: str
    unit: str
    of: str
    expression: str


_STALLED: Final = (
    "max by (instance) (deriv(rankskew_node_pressure_waiting_seconds_total{{{}}}[1m]))"
)
_STORAGE: Final = (
    Measure(
        "read from storage",
        "bytes_per_second",
        RANK,
        "deriv(rankskew_rank_read_bytes_total{WHERE}[1m])",
    ),
    Measure(
        "major page faults",
        "per_second",
        RANK,
        "deriv(rankskew_rank_major_faults_total{WHERE}[1m])",
    ),
)
_NODE_IO: Final = Measure(
    "tasks of the node wait for I/O", "share", NODE, _STALLED.format('resource="io",WHERE')
)
_WORKERS: Final = Measure(
    "loader workers that never wait", "count", RANK, "rankskew_rank_saturated_workers{WHERE}"
)

# By cause and detail; those of "" are for all details of the cause.
MEASURES: Final[dict[tuple[str, str], tuple[Measure, ...]]] = {
    ("gc", ""): (
        Measure(
            "time in garbage collection",
            "share",
            RANK,
            "deriv(rankskew_gc_pause_seconds_total{WHERE}[1m])",
        ),
    ),
    ("uneven_batches", ""): (
        Measure(
            "tokens a step",
            "count",
            RANK,
            "delta(rankskew_tokens_total{WHERE}[1m])"
            " / (delta(rankskew_steps_total{WHERE}[1m]) > 0)",
        ),
    ),
    ("slow_device", "clocks"): (
        Measure(
            "SM clock",
            "hertz",
            GPU,
            'avg_over_time(rankskew_gpu_clock_hertz{clock="sm",WHERE}[1m])',
        ),
        Measure(
            "temperature", "celsius", GPU, 'rankskew_gpu_temperature_celsius{sensor="gpu",WHERE}'
        ),
        Measure(
            "throttled",
            "share",
            GPU,
            "max by (instance, gpu_uuid) (deriv(rankskew_gpu_throttle_seconds_total{WHERE}[5m]))",
        ),
    ),
    ("slow_device", "pcie_link"): (
        Measure("PCIe lanes", "count", GPU, "rankskew_gpu_pcie_link_width{WHERE}"),
        Measure("PCIe generation", "count", GPU, "rankskew_gpu_pcie_link_generation{WHERE}"),
    ),
    ("slow_device", "nvlink"): (
        Measure("NVLinks up", "count", GPU, "rankskew_gpu_nvlink_links_up{WHERE}"),
    ),
    ("slow_device", "memory"): (
        Measure(
            "uncorrected ECC errors in all",
            "count",
            GPU,
            'max by (instance, gpu_uuid) (rankskew_gpu_ecc_errors_total{type="uncorrected",WHERE})',
        ),
    ),
    ("foreign_process", ""): (
        Measure("foreign processes", "count", GPU, "rankskew_gpu_foreign_processes{WHERE}"),
    ),
    ("cpu", "throttled"): (
        Measure(
            "periods in which its CPU quota was used up",
            "share",
            RANK,
            "delta(rankskew_rank_cgroup_throttled_periods_total{WHERE}[1m])"
            " / (delta(rankskew_rank_cgroup_periods_total{WHERE}[1m]) > 0)",
        ),
    ),
    ("cpu", "run_queue"): (
        Measure(
            "its main thread waits for a CPU",
            "share",
            RANK,
            'deriv(rankskew_rank_run_queue_seconds_total{process="main",WHERE}[1m])',
        ),
    ),
    ("cpu", "workers_run_queue"): (
        Measure(
            "its workers wait for CPUs, a second",
            "seconds",
            RANK,
            'deriv(rankskew_rank_run_queue_seconds_total{process="workers",WHERE}[1m])',
        ),
    ),
    ("cpu", "numa"): (
        Measure("its CPUs near its GPU", "share", RANK, "rankskew_rank_numa_local{WHERE}"),
    ),
    ("cpu", "node"): (
        Measure(
            "tasks of the node wait for CPUs",
            "share",
            NODE,
            _STALLED.format('resource="cpu",WHERE'),
        ),
        Measure(
            "CPUs taken by other guests",
            "count",
            NODE,
            'sum by (instance) (deriv(rankskew_node_cpu_seconds_total{mode="steal",WHERE}[1m]))',
        ),
    ),
    ("input", "reads"): _STORAGE,
    ("input", "workers"): (_WORKERS,),
    ("input", "storage"): (_NODE_IO,),
    ("input", "stage"): (_WORKERS, _STORAGE[0]),
    ("network", "node"): (
        Measure(
            "packets dropped",
            "per_second",
            NODE,
            "sum by (instance) (deriv(rankskew_node_network_receive_drops_total{WHERE}[1m])"
            " + deriv(rankskew_node_network_transmit_drops_total{WHERE}[1m]))",
        ),
        Measure(
            "errors of InfiniBand ports",
            "per_second",
            NODE,
            "sum by (instance) (deriv(rankskew_infiniband_errors_total{WHERE}[1m]))",
        ),
    ),
}


def measures(cause: str, detail: str) -> tuple[Measure, ...]:
    """Return what to measure for a cause with this *detail*, "" for none."""
    if (cause, detail) in MEASURES:
        return MEASURES[cause, detail]
    # A cause without a detail is known by its node, or by the stage alone.
    return MEASURES.get((cause, "node"), MEASURES.get((cause, "stage"), ()))
