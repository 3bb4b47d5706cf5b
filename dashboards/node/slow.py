"""Panels of the node dashboard on what slows a host: its storage, its CPUs' clock, full memory."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.node.series import host_panel, rate
from dashboards.shared.panels import LATE_COLOUR, STAGE_COLOURS, WAIT_COLOUR, drawn, fixed, shades
from dashboards.shared.variables import NODE

DATA: Final = shades(STAGE_COLOURS["data"])


def slow() -> Sequence[timeseries.Panel]:
    """Return the panels, each of which shows a cause that the rules know."""
    reads = f"{rate('disk_read_seconds_total')} / ({rate('disk_reads_total')} > 0)"
    mounts = f"{rate('mount_operation_seconds_total')} / ({rate('mount_operations_total')} > 0)"
    killed = f"increase(rankskew_node_oom_kills_total{{{NODE}}}[$__rate_interval])"
    return (
        drawn(
            host_panel(
                "Busiest disk",
                "Share of the time in which the busiest disk had work. Bytes that stay low while "
                "it is busy show a slow one.",
                "percentunit",
                "No physical disk",
            ),
            (rate("disk_busy_seconds_total"), "{{device}}", [DATA]),
        ),
        drawn(
            host_panel(
                "Time per operation on storage",
                "Mean time of a read from a disk, and of an operation on NFS or Lustre. Flash and "
                "servers need less than 5 ms.",
                "s",
                "Nothing was read",
            ),
            (reads, "read from {{device}}", [DATA]),
            (mounts, "{{export}} ({{fstype}})", [shades(WAIT_COLOUR)]),
        ),
        drawn(
            host_panel(
                "Clock of busy CPUs",
                "Mean clock of the CPUs that work. Compare it with a node that is not late: a "
                "power profile, a cap or heat lowers it.",
                "hertz",
                "Not measured, as on virtual machines",
            ),
            (f"rankskew_node_cpu_clock_hertz{{{NODE}}}", "clock", [fixed(WAIT_COLOUR)]),
        ),
        drawn(
            host_panel(
                "CPUs throttled by heat",
                "Share of the time in which heat throttled the CPU package that it throttled most; "
                "Intel only. The kernel counts it when it ends.",
                "percentunit",
            ),
            (rate("cpu_throttled_seconds_total"), "throttled", [shades(LATE_COLOUR)]),
        ),
        drawn(
            host_panel(
                "Memory that runs out",
                "Pages per second that were allocated on another NUMA node than wanted, because "
                "that was full, and processes that the kernel killed for lack of memory.",
                "none",
            ),
            (rate("numa_misses_total"), "pages on the wrong NUMA node", [fixed(WAIT_COLOUR)]),
            (f"{killed} > 0", "processes killed", [fixed(LATE_COLOUR)]),
        ),
    )
