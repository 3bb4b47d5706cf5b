"""The host panels of the node dashboard: CPU, pressure, memory, network, InfiniBand, disk."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.node.series import host_panel, rate
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    STAGE_COLOURS,
    WAIT_COLOUR,
    Line,
    Override,
    drawn,
    fixed,
    increase_per_second,
    line,
    shades,
    stacked_panel,
)
from dashboards.shared.variables import NODE

MODES: Final = {
    "user": WAIT_COLOUR,
    "system": STAGE_COLOURS["backward"],
    "iowait": STAGE_COLOURS["data"],
    "irq": PEERS_COLOUR,
    "steal": LATE_COLOUR,
}
IDLE: Final = f'mode!="idle",{NODE}'
LIMIT: Final = (fixed(PEERS_COLOUR), *line(2, dashed=True))
# A line over areas that add up does not add to them.
ALONE: Final = (
    Override(id_val="custom.fillOpacity", value=0),
    Override(id_val="custom.stacking", value={"mode": "none", "group": "A"}),
)
RESOURCES: Final = {"cpu": WAIT_COLOUR, "io": STAGE_COLOURS["data"], "memory": LATE_COLOUR}


def host() -> Sequence[timeseries.Panel]:
    """Return the panels about the host."""
    return (
        _cpu(),
        _pressure(),
        _memory(),
        _network(),
        _drops(),
        _infiniband(),
        _congestion(),
        _disk(),
    )


def _cpu() -> timeseries.Panel:
    panel = stacked_panel(
        "CPUs busy, by mode",
        "CPUs that are busy in each mode, and how many the node has. Data loaders that have "
        "no CPU left delay their ranks.",
        "none",
        span=8,
        colours={f"^{mode}$": colour for mode, colour in MODES.items()},
    )
    return drawn(
        panel.height(7).no_value("Not measured"),
        (f"sum by (mode) ({rate('cpu_seconds_total', IDLE)})", "{{mode}}", []),
        (f"sum({rate('cpu_seconds_total')})", "all CPUs", [*LIMIT, *ALONE]),
    )


def _pressure() -> timeseries.Panel:
    panel = drawn(
        host_panel(
            "Pressure",
            "Share of the time in which some task waited for a resource, and in which all of them "
            "did (stalled). Data loaders that starve each other show here.",
            "percentunit",
            "The kernel does not report pressure",
        ),
        (rate("pressure_waiting_seconds_total"), "{{resource}}", []),
        (rate("pressure_stalled_seconds_total"), "{{resource}} stalled", []),
    )
    for resource, colour in RESOURCES.items():
        panel.override_by_regexp(f"/^{resource}/", [fixed(colour)])
    return panel.override_by_regexp("/stalled$/", line(2, dashed=True))


def _memory() -> timeseries.Panel:
    free = f"rankskew_node_numa_memory_free_bytes{{{NODE}}}"
    available = f"rankskew_node_memory_available_bytes{{{NODE}}}"
    return drawn(
        host_panel(
            "Memory",
            "Memory of the node, what programs can still take without swapping, and what is free "
            "on each NUMA node. The page cache is not free, but can be taken back.",
            "bytes",
        ),
        (f"rankskew_node_memory_total_bytes{{{NODE}}}", "total", LIMIT),
        (available, "available", [fixed(WAIT_COLOUR), *line(2)]),
        (free, "free on {{numa_node}}", [shades(STAGE_COLOURS["forward"])]),
    )


def _network() -> timeseries.Panel:
    return drawn(
        host_panel(
            "Network",
            "Bytes per second that the busiest network devices receive and send, without RDMA. "
            "Storage and the join of the ranks use these.",
            "Bps",
            "No network device",
        ),
        *_both_ways(
            f"topk(4, {rate('network_receive_bytes_total')})",
            f"topk(4, {rate('network_transmit_bytes_total')})",
            "{{device}}",
        ),
    )


def _drops() -> timeseries.Panel:
    drops = "rankskew_node_network_%s_drops_total{" + NODE + "}"
    infiniband = f"rankskew_infiniband_errors_total{{{NODE}}}"
    devices = f"rankskew_node_network_errors_total{{{NODE}}}"
    return drawn(
        host_panel(
            "Network drops and InfiniBand errors",
            "Packets per second that network devices dropped, and errors per second of the "
            "InfiniBand or RoCE ports. A healthy network has next to none.",
            "cps",
            "No drop or error is known",
        ),
        *_both_ways(
            increase_per_second(drops % "receive"),
            increase_per_second(drops % "transmit"),
            "{{device}} drops",
        ),
        (increase_per_second(infiniband), "{{device}}:{{port}} errors", []),
        (increase_per_second(devices), "errors of network devices", []),
    ).override_by_regexp("/errors/", [shades(LATE_COLOUR)])


def _congestion() -> timeseries.Panel:
    resent = f"{rate('tcp_retransmitted_segments_total')} / {rate('tcp_sent_segments_total')}"
    infiniband = "rate(rankskew_infiniband_%s_total{" + NODE + "}[$__rate_interval])"
    sent = f"on (cluster, instance) sum by (cluster, instance) ({infiniband % 'transmit_bytes'})"
    waits = f"8 * {infiniband % 'transmit_wait'} / {sent}"
    marks = f"4096 * {infiniband % 'congestion_events'} / {sent}"
    return drawn(
        host_panel(
            "Retransmits and congestion",
            "Share of the TCP segments that are sent again; time for which the InfiniBand ports "
            "wait to send, in relation to the time that they send; marks of congestion per packet "
            "on RoCE. A node that is worse than its peers delays them.",
            "percentunit",
        ),
        (resent, "TCP sent again", [fixed(STAGE_COLOURS["data"])]),
        (waits, "InfiniBand waits to send", [fixed(LATE_COLOUR)]),
        (marks, "RoCE marks", [fixed(STAGE_COLOURS["backward"])]),
    )


def _infiniband() -> timeseries.Panel:
    moved = "rate(rankskew_infiniband_%s_bytes_total{" + NODE + "}[$__rate_interval])"
    return drawn(
        host_panel(
            "InfiniBand and RoCE",
            "Bytes per second that each port receives and sends, and the rate of the slowest "
            "link. A port that is down has the rate 0.",
            "Bps",
            "No InfiniBand or RoCE port",
        ),
        *_both_ways(moved % "receive", moved % "transmit", "{{device}}:{{port}}"),
        (f"min(rankskew_infiniband_rate_bytes_per_second{{{NODE}}})", "slowest link", LIMIT),
    )


def _disk() -> timeseries.Panel:
    return drawn(
        host_panel(
            "Disks",
            "Bytes per second read from and written to the node's physical disks. Storage that is "
            "mounted over the network is not among them.",
            "Bps",
            "No physical disk",
        ),
        (rate("disk_read_bytes_total"), "read", [fixed(WAIT_COLOUR)]),
        (rate("disk_written_bytes_total"), "written", [fixed(STAGE_COLOURS["checkpoint"])]),
    )


def _both_ways(received: str, sent: str, name: str) -> tuple[Line, Line]:
    return (
        (received, f"{name} in", [shades(WAIT_COLOUR)]),
        (sent, f"{name} out", [shades(STAGE_COLOURS["checkpoint"])]),
    )
