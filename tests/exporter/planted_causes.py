"""A late rank for tests: a healthy one and its peers, changed where a test needs it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from exporter.causes.explain import explain
from exporter.causes.model import Cause, Evidence, Lateness, Peers, Quantiles, ThreadState
from rank_probe.judge.verdict import NODE, PERSISTENT

# Seconds a step of a rank that nothing is wrong with; half a second in all, as in the simulation.
STAGES: Final = {
    "optimizer": 0.04,
    "other": 0.025,
    "data": 0.04,
    "h2d": 0.01,
    "forward": 0.13,
    "backward": 0.255,
}
BUSY: Final = sum(STAGES.values())
# What a healthy rank of a busy job has.
HEALTHY: Final = {
    "sm_clock_hertz": 1.95e9,
    "memory_clock_hertz": 2.619e9,
    "gpu_throttled_ratio": 0.005,
    "gpu_power_watts": 640.0,
    "gpu_temperature_celsius": 60.0,
    "gpu_decoder_ratio": 0.0,
    "gpu_foreign_processes": 0.0,
    "gpu_memory_faults": 0.0,
    "pcie_link_bytes_per_second": 63e9,
    "pcie_errors_per_second": 0.0,
    "nvlink_links_up": 18.0,
    "nvlink_errors_per_second": 0.0,
    "main_running_ratio": 0.9,
    "main_run_queue_ratio": 0.005,
    "workers_run_queue_ratio": 0.01,
    "saturated_workers": 0.0,
    "cpu_quota_throttled_ratio": 0.002,
    "cpus_near_gpu_ratio": 1.0,
    "read_bytes_per_second": 1e6,
    "major_faults_per_second": 0.1,
    "io_waiting_ratio": 0.01,
    "gc_ratio": 0.002,
    "tokens_per_step": 8192.0,
    "samples_per_step": 16.0,
    "node_cpu_waiting_ratio": 0.01,
    "node_io_waiting_ratio": 0.01,
    "node_steal_cpus": 0.0,
    "node_cpu_clock_hertz": 3.1e9,
    "node_cpu_throttled_ratio": 0.0,
    "node_numa_misses_per_second": 0.0,
    "node_disk_busy_ratio": 0.11,
    "node_disk_read_seconds": 0.0004,
    "node_mount_operation_seconds": 0.0008,
    "node_network_errors_per_second": 0.0,
    "node_network_waiting_ratio": 0.01,
    "node_network_link_bytes_per_second": 50e9,
    "node_tcp_retransmitted_ratio": 0.0001,
    **{f"{stage}_seconds": seconds for stage, seconds in STAGES.items()},
}
# How far a third of its peers is from the middle.
SPREAD: Final = 0.005

LINE: Final = "Corpus.get (corpus.py:41)"

States = Sequence[tuple[str, str, float, str]]


def peers(**changes: float | None) -> dict[str, Quantiles]:
    """Return the figures of healthy peers with *changes*, None for "not known"."""
    known = {name: value for name, value in {**HEALTHY, **changes}.items() if value is not None}
    return {
        name: Quantiles(value * (1 - SPREAD), value, value * (1 + SPREAD))
        for name, value in known.items()
    }


def lateness(
    extra: Mapping[str, float], kind: str = PERSISTENT, *, is_alone: bool = False
) -> Lateness:
    """Return a late rank that needs *extra* shares of a healthy rank's time, by stage."""
    return Lateness(
        max(extra, key=lambda stage: extra[stage]), kind, sum(extra.values()), extra, is_alone
    )


def evidence(
    extra: Mapping[str, float],
    changes: Mapping[str, float],
    states: States = (),
    workers: States = (),
    facts: Mapping[str, str] | None = None,
) -> Evidence:
    """Return what is known of a rank with *changes* that needs *extra* time."""
    longer = {
        f"{stage}_seconds": STAGES.get(stage, 0.0) + share * BUSY for stage, share in extra.items()
    }
    return Evidence(
        {**HEALTHY, **longer, **changes},
        [ThreadState(*each) for each in states],
        [ThreadState(*each) for each in workers],
        facts or {},
    )


def at(stage: str, place: str = LINE, **shares: float) -> list[tuple[str, str, float, str]]:
    """Return what a thread does in *stage*: the share of its time in each state."""
    return [(stage, state, share, place) for state, share in shares.items()]


def why(late: Lateness, said: Evidence, usual: Peers | None) -> Cause:
    """Return why it is late."""
    cause = explain(late, said, usual)
    assert cause is not None
    return cause


def found(
    extra: Mapping[str, float],
    changes: Mapping[str, float] | None = None,
    *,
    states: States = (),
    workers: States = (),
    facts: Mapping[str, str] | None = None,
    usual: Mapping[str, float | None] | None = None,
    of_node: bool = False,
) -> Cause:
    """Return why a rank, or its whole node, is late."""
    return why(
        lateness(extra, NODE if of_node else PERSISTENT),
        evidence(extra, changes or {}, states, workers, facts),
        peers(**(usual or {})),
    )


def named(cause: Cause) -> tuple[str, str]:
    """Return the name of *cause* and of its detail."""
    return cause.cause, cause.detail


SHORT: Final = {
    "clock": "sm_clock_hertz",
    "memory_clock": "memory_clock_hertz",
    "queue": "main_run_queue_ratio",
    "runs": "main_running_ratio",
    "quota": "cpu_quota_throttled_ratio",
    "workers_queue": "workers_run_queue_ratio",
    "foreign": "gpu_foreign_processes",
    "step": "step_seconds",
    "tokens": "tokens_per_step",
    "samples": "samples_per_step",
}


def figures(text: str) -> dict[str, Any]:
    """Return what `NAME=NUMBER ...` says, by the whole name of the figure; ? is not known."""
    pairs = (each.split("=") for each in text.split())
    return {SHORT.get(name, name): None if value == "?" else float(value) for name, value in pairs}
