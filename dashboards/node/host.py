"""The host panels of the node dashboard: CPU, pressure, memory, network, InfiniBand, disk."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    STAGE_COLOURS,
    WAIT_COLOUR,
    Override,
    fixed,
    line,
    query,
    shades,
    stacked_panel,
    time_panel,
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
# A line over areas that add up does not add to them.
ALONE: Final = [
    Override(id_val="custom.fillOpacity", value=0),
    Override(id_val="custom.stacking", value={"mode": "none", "group": "A"}),
]
RESOURCES: Final = {
    "cpu": WAIT_COLOUR,
    "io": STAGE_COLOURS["data"],
    "memory": LATE_COLOUR,
}


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
    panel = (
        stacked_panel(
            "CPUs busy, by mode",
            "CPUs that are busy in each mode, and how many the node has. Data loaders that have "
            "no CPU left delay their ranks.",
            "none",
            span=8,
            colours={f"^{mode}$": colour for mode, colour in MODES.items()},
        )
        .height(7)
        .no_value("Not measured")
        .with_target(query(f"sum by (mode) ({_rate('cpu_seconds_total', IDLE)})", "{{mode}}"))
        .with_target(query(f"sum({_rate('cpu_seconds_total')})", "all CPUs", "B"))
    )
    return panel.override_by_query("B", [fixed(PEERS_COLOUR), *line(2, dashed=True), *ALONE])


def _pressure() -> timeseries.Panel:
    panel = (
        _panel(
            "Pressure",
            "Share of the time in which some task waited for a resource, and in which all of them "
            "did (stalled). Data loaders that starve each other show here.",
            "percentunit",
        )
        .no_value("The kernel does not report pressure")
        .with_target(query(_rate("pressure_waiting_seconds_total"), "{{resource}}"))
        .with_target(query(_rate("pressure_stalled_seconds_total"), "{{resource}} stalled", "B"))
    )
    for resource, colour in RESOURCES.items():
        panel.override_by_regexp(f"/^{resource}/", [fixed(colour)])
    return panel.override_by_regexp("/stalled$/", line(2, dashed=True))


def _memory() -> timeseries.Panel:
    return (
        _panel(
            "Memory",
            "Memory of the node, what programs can still take without swapping, and what is free "
            "on each NUMA node. The page cache is not free, but can be taken back.",
            "bytes",
        )
        .no_value("Not measured")
        .with_target(query(f"rankskew_node_memory_total_bytes{{{NODE}}}", "total"))
        .with_target(query(f"rankskew_node_memory_available_bytes{{{NODE}}}", "available", "B"))
        .with_target(
            query(f"rankskew_node_numa_memory_free_bytes{{{NODE}}}", "free on {{numa_node}}", "C")
        )
        .override_by_query("A", [fixed(PEERS_COLOUR), *line(2, dashed=True)])
        .override_by_query("B", [fixed(WAIT_COLOUR), *line(2)])
        .override_by_query("C", [shades(STAGE_COLOURS["forward"])])
    )


def _network() -> timeseries.Panel:
    return _both_ways(
        _panel(
            "Network",
            "Bytes per second that the busiest network devices receive and send, without RDMA. "
            "Storage and the join of the ranks use these.",
            "Bps",
        ).no_value("No network device"),
        f"topk(4, {_rate('network_receive_bytes_total')})",
        f"topk(4, {_rate('network_transmit_bytes_total')})",
        "{{device}}",
    )


def _drops() -> timeseries.Panel:
    return (
        _both_ways(
            _panel(
                "Network drops and InfiniBand errors",
                "Packets per second that network devices dropped, and errors per second of the "
                "InfiniBand or RoCE ports. A healthy network has next to none.",
                "cps",
            ).no_value("No drop or error is known"),
            f"{_rate('network_receive_drops_total')} > 0",
            f"{_rate('network_transmit_drops_total')} > 0",
            "{{device}} drops",
        )
        .with_target(
            query(
                f"rate(rankskew_infiniband_errors_total{{{NODE}}}[$__rate_interval]) > 0",
                "{{device}}:{{port}} errors",
                "C",
            )
        )
        .with_target(
            query(f"{_rate('network_errors_total')} > 0", "errors of network devices", "D")
        )
        .override_by_regexp("/errors/", [shades(LATE_COLOUR)])
    )


def _congestion() -> timeseries.Panel:
    resent = f"{_rate('tcp_retransmitted_segments_total')} / {_rate('tcp_sent_segments_total')}"
    infiniband = "rate(rankskew_infiniband_%s_total{" + NODE + "}[$__rate_interval])"
    sent = f"on (cluster, instance) sum by (cluster, instance) ({infiniband % 'transmit_bytes'})"
    return (
        _panel(
            "Retransmits and congestion",
            "Share of the TCP segments that are sent again; time for which the InfiniBand ports "
            "wait to send, in relation to the time that they send; marks of congestion per packet "
            "on RoCE. A node that is worse than its peers delays them.",
            "percentunit",
        )
        .no_value("Not measured")
        .with_target(query(resent, "TCP sent again"))
        .with_target(
            query(f"8 * {infiniband % 'transmit_wait'} / {sent}", "InfiniBand waits to send", "B")
        )
        .with_target(
            query(f"4096 * {infiniband % 'congestion_events'} / {sent}", "RoCE marks", "C")
        )
        .override_by_query("A", [fixed(STAGE_COLOURS["data"])])
        .override_by_query("B", [fixed(LATE_COLOUR)])
        .override_by_query("C", [fixed(STAGE_COLOURS["backward"])])
    )


def _infiniband() -> timeseries.Panel:
    moved = "rate(rankskew_infiniband_%s_bytes_total{" + NODE + "}[$__rate_interval])"
    panel = _both_ways(
        _panel(
            "InfiniBand and RoCE",
            "Bytes per second that each port receives and sends, and the rate of the slowest "
            "link. A port that is down has the rate 0.",
            "Bps",
        ).no_value("No InfiniBand or RoCE port"),
        moved % "receive",
        moved % "transmit",
        "{{device}}:{{port}}",
    ).with_target(
        query(f"min(rankskew_infiniband_rate_bytes_per_second{{{NODE}}})", "slowest link", "C")
    )
    return panel.override_by_query("C", [fixed(PEERS_COLOUR), *line(2, dashed=True)])


def _disk() -> timeseries.Panel:
    return (
        _panel(
            "Disks",
            "Bytes per second read from and written to the node's physical disks. Storage that is "
            "mounted over the network is not among them.",
            "Bps",
        )
        .no_value("No physical disk")
        .with_target(query(_rate("disk_read_bytes_total"), "read"))
        .with_target(query(_rate("disk_written_bytes_total"), "written", "B"))
        .override_by_query("A", [fixed(WAIT_COLOUR)])
        .override_by_query("B", [fixed(STAGE_COLOURS["checkpoint"])])
    )


def _panel(title: str, description: str, unit: str) -> timeseries.Panel:
    return time_panel(title, description, unit, span=8).height(7)


def _both_ways(panel: timeseries.Panel, received: str, sent: str, name: str) -> timeseries.Panel:
    return (
        panel.with_target(query(received, f"{name} in"))
        .with_target(query(sent, f"{name} out", "B"))
        .override_by_query("A", [shades(WAIT_COLOUR)])
        .override_by_query("B", [shades(STAGE_COLOURS["checkpoint"])])
    )


def _rate(counter: str, selector: str = NODE) -> str:
    return f"rate(rankskew_node_{counter}{{{selector}}}[$__rate_interval])"
