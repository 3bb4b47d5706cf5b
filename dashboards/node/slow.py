"""Panels of the node dashboard on what slows a host: its storage, its CPUs' clock, full memory."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.shared.panels import LATE_COLOUR, STAGE_COLOURS, WAIT_COLOUR, fixed, query, shades
from dashboards.shared.panels import time_panel as panel
from dashboards.shared.variables import NODE

DATA_COLOUR: Final = STAGE_COLOURS["data"]


def slow() -> Sequence[timeseries.Panel]:
    """Return the panels, each of which shows a cause that the rules know."""
    return (_busy_disks(), _operations(), _clock(), _throttled(), _memory())


def _busy_disks() -> timeseries.Panel:
    return (
        panel(
            "Busiest disk",
            "Share of the time in which the busiest disk had work. Bytes that stay low while it "
            "is busy show a slow one.",
            "percentunit",
            span=8,
        )
        .height(7)
        .no_value("No physical disk")
        .with_target(query(_rate("disk_busy_seconds_total"), "{{device}}"))
        .override_by_query("A", [shades(DATA_COLOUR)])
    )


def _operations() -> timeseries.Panel:
    reads = f"{_rate('disk_read_seconds_total')} / ({_rate('disk_reads_total')} > 0)"
    mounts = f"{_rate('mount_operation_seconds_total')} / ({_rate('mount_operations_total')} > 0)"
    return (
        panel(
            "Time per operation on storage",
            "Mean time of a read from a disk, and of an operation on NFS or Lustre. Flash and "
            "servers need less than 5 ms.",
            "s",
            span=8,
        )
        .height(7)
        .no_value("Nothing was read")
        .with_target(query(reads, "read from {{device}}"))
        .with_target(query(mounts, "{{export}} ({{fstype}})", "B"))
        .override_by_query("A", [shades(DATA_COLOUR)])
        .override_by_query("B", [shades(WAIT_COLOUR)])
    )


def _clock() -> timeseries.Panel:
    return (
        panel(
            "Clock of busy CPUs",
            "Mean clock of the CPUs that work. Compare it with a node that is not late: a power "
            "profile, a cap or heat lowers it.",
            "hertz",
            span=8,
        )
        .height(7)
        .no_value("Not measured, as on virtual machines")
        .with_target(query(f"rankskew_node_cpu_clock_hertz{{{NODE}}}", "clock"))
        .override_by_query("A", [fixed(WAIT_COLOUR)])
    )


def _throttled() -> timeseries.Panel:
    return (
        panel(
            "CPUs throttled by heat",
            "Share of the time in which heat throttled the CPU package that it throttled most; "
            "Intel only. The kernel counts it when it ends.",
            "percentunit",
            span=8,
        )
        .height(7)
        .no_value("Not measured")
        .with_target(query(_rate("cpu_throttled_seconds_total"), "throttled"))
        .override_by_query("A", [shades(LATE_COLOUR)])
    )


def _memory() -> timeseries.Panel:
    killed = f"increase(rankskew_node_oom_kills_total{{{NODE}}}[$__rate_interval])"
    return (
        panel(
            "Memory that runs out",
            "Pages per second that were allocated on another NUMA node than wanted, because that "
            "was full, and processes that the kernel killed for lack of memory.",
            "none",
            span=8,
        )
        .height(7)
        .no_value("Not measured")
        .with_target(query(_rate("numa_misses_total"), "pages on the wrong NUMA node"))
        .with_target(query(f"{killed} > 0", "processes killed", "B"))
        .override_by_query("A", [fixed(WAIT_COLOUR)])
        .override_by_query("B", [fixed(LATE_COLOUR)])
    )


def _rate(counter: str) -> str:
    return f"rate(rankskew_node_{counter}{{{NODE}}}[$__rate_interval])"
