"""The GPU panels of the node dashboard: work, memory, heat, clocks, links and errors."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.node.series import GPU, gpu_panel
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    drawn,
    fixed,
    increase,
    line,
    query,
    shades,
    time_panel,
)
from dashboards.shared.states import ORANGE

NO_GPU: Final = "No GPU telemetry"
NO_GPM: Final = "Not measured: needs Hopper or newer"
NO_ERRORS: Final = "No new error is known"


def work() -> Sequence[timeseries.Panel]:
    """Return what the GPUs do."""
    return (
        gpu_panel(
            "GPU utilisation",
            "Share of the time in which a kernel ran. A GPU that waits in a collective looks busy; "
            "SM activity tells them apart. Dashed: decoders that work.",
            "percentunit",
            _gauge("utilization_ratio"),
            NO_GPU,
        )
        .max(1)
        .with_target(
            query(f"{_gauge('decoder_utilization_ratio')} > 0", "decoder of GPU {{gpu}}", "C")
        )
        .override_by_query("C", [shades(ORANGE), *line(1, dashed=True)]),
        gpu_panel(
            "SM active",
            "Share of the SMs that were busy, mean over all of them. A kernel that waits in a "
            "collective occupies only a few.",
            "percentunit",
            _gauge("sm_active_ratio"),
            NO_GPM,
        ).max(1),
        gpu_panel(
            "Tensor cores active",
            "Share of the time in which the SMs performed tensor operations of any kind, such as "
            "matrix multiplications in half precision.",
            "percentunit",
            _gauge("tensor_active_ratio"),
            NO_GPM,
        ).max(1),
        gpu_panel(
            "Memory bandwidth used",
            "Share of the peak memory bandwidth that was used (DRAM active). Near its maximum, "
            "faster arithmetic would not help.",
            "percentunit",
            _gauge("dram_active_ratio"),
            NO_GPM,
        ).max(1),
        gpu_panel(
            "Memory used",
            "Bytes of the GPU's memory that processes have allocated. Peers use about the same; "
            "a GPU with more may be shared.",
            "bytes",
            _gauge("memory_used_bytes"),
            NO_GPU,
        ),
        gpu_panel(
            "Memory free",
            "Bytes of the GPU's memory that are left. Below a few percent the allocator frees its "
            "cache and retries, which takes time.",
            "bytes",
            f"{_gauge('memory_total_bytes')} - {_gauge('memory_used_bytes')}",
            NO_GPU,
        ),
    )


def heat() -> Sequence[timeseries.Panel]:
    """Return heat, power, clocks and what throttles them."""
    return (
        gpu_panel(
            "Temperature",
            "Temperature of the GPU's die. The GPU next to a broken fan is the hot one; whether "
            "heat slows it down is shown under Throttled.",
            "celsius",
            f'rankskew_gpu_temperature_celsius{{sensor="gpu",{GPU}}}',
            NO_GPU,
        ),
        _limit(
            gpu_panel(
                "Power",
                "Power draw of each GPU, and the highest power limit of all of them. A GPU that "
                "waits draws less than its peers.",
                "watt",
                _gauge("power_watts"),
                NO_GPU,
            ),
            f"max({_gauge('power_limit_watts')})",
            "limit",
        ),
        _limit(
            gpu_panel(
                "SM clock",
                "Clock of each GPU's SMs, and the highest that any of them can run at. A GPU "
                "below its peers is slower in every kernel.",
                "hertz",
                f'rankskew_gpu_clock_hertz{{clock="sm",{GPU}}}',
                NO_GPU,
            ),
            f'max(rankskew_gpu_clock_max_hertz{{clock="sm",{GPU}}})',
            "maximum",
        ),
        gpu_panel(
            "Performance state",
            "P-state of each GPU: 0 is the fastest; from 3 on it saves power. A GPU that stays in "
            "a slower state than its peers at work has slower clocks.",
            "none",
            _gauge("performance_state"),
            NO_GPU,
        ).decimals(0),
        _throttled(),
    )


def links() -> Sequence[timeseries.Panel]:
    """Return the traffic and the state of PCIe and NVLink."""
    width = f"{_gauge('pcie_link_width')} / {_gauge('pcie_link_width_max')}"
    generation = f"{_gauge('pcie_link_generation')} - {_gauge('pcie_link_generation_max')}"
    received = f"rate({_gauge('nvlink_receive_bytes_total')}[$__rate_interval])"
    sent = f"rate({_gauge('nvlink_transmit_bytes_total')}[$__rate_interval])"
    return (
        gpu_panel(
            "PCIe traffic",
            "Bytes per second that each GPU receives and sends over PCIe. A GPU that gets its "
            "batches over a slow link has less than its peers.",
            "Bps",
            f"{_gauge('pcie_receive_bytes_per_second')}"
            f" + {_gauge('pcie_transmit_bytes_per_second')}",
            NO_GPU,
        ),
        gpu_panel(
            "PCIe link, share of its maximum",
            "Lanes and generation of each link in use, relative to what GPU and slot can do: half "
            "if half of the lanes are gone, or if it is one generation back. The generation of an "
            "idle GPU is not counted, because power management lowers it.",
            "percentunit",
            f"{width} * (2 ^ ({generation}) or {_gauge('pcie_link_width')} ^ 0)",
            NO_GPU,
        ).max(1),
        gpu_panel(
            "NVLink traffic",
            "Bytes per second that each GPU receives and sends over all its NVLinks together. "
            "GPUs without NVLink have no line.",
            "Bps",
            f"{received} + {sent}",
            "No NVLink",
        ),
    )


def errors() -> Sequence[timeseries.Panel]:
    """Return the errors of GPUs, memory and links as they occur."""
    return (
        # Not an increase: the first error of a kind creates its series.
        _new_errors(
            "XID errors",
            "Errors that the driver has reported since the exporter's readings began, by number. "
            "The runbook of RankskewGpuXid says which of them are the hardware's.",
            f"rankskew_gpu_xid_errors_total{{{GPU}}} > 0",
            "GPU {{gpu}} XID {{xid}}",
            "No XID error is known",
        ),
        _new_errors(
            "Memory errors",
            "ECC errors and replaced rows of the GPUs' memory, as they occur. Corrected ECC errors "
            "are harmless while they are few; others are not.",
            increase(f"rankskew_gpu_ecc_errors_total{{{GPU}}}"),
            "GPU {{gpu}} ECC {{type}}",
        ).with_target(
            query(
                increase(f"rankskew_gpu_remapped_rows_total{{{GPU}}}"),
                "GPU {{gpu}} row replaced ({{type}})",
                "B",
            )
        ),
        _new_errors(
            "Link errors",
            "Packets that had to be sent again over PCIe, and errors of the NVLinks, as they "
            "occur. A worn contact shows here before the link loses lanes.",
            f"increase(rankskew_gpu_pcie_replays_total{{{GPU}}}[$__rate_interval]) > 0",
            "GPU {{gpu}} PCIe replay",
        )
        .with_target(
            query(
                f"increase(rankskew_gpu_nvlink_errors_total{{{GPU}}}[$__rate_interval]) > 0",
                "GPU {{gpu}} NVLink {{type}}",
                "B",
            )
        )
        .with_target(
            query(
                f"increase(rankskew_gpu_pcie_errors_total{{{GPU}}}[$__rate_interval]) > 0",
                "GPU {{gpu}} PCIe (kernel)",
                "C",
            )
        )
        .with_target(
            query(
                f"increase(rankskew_gpu_nvlink_link_errors_total{{{GPU}}}[$__rate_interval]) > 0",
                "GPU {{gpu}} NVLink {{link}}",
                "D",
            )
        )
        .override_by_query("C", [shades(LATE_COLOUR)])
        .override_by_query("D", [shades(ORANGE)]),
    )


def _gauge(name: str) -> str:
    return f"rankskew_gpu_{name}{{{GPU}}}"


def _limit(panel: timeseries.Panel, series: str, legend: str) -> timeseries.Panel:
    return panel.with_target(query(series, legend, "C")).override_by_query(
        "C", [fixed(PEERS_COLOUR), *line(2, dashed=True)]
    )


def _throttled() -> timeseries.Panel:
    return drawn(
        time_panel(
            "Throttled, by reason",
            "Share of the time for which a GPU's clocks were throttled, by reason. A power cap is "
            "usual at full load; a thermal or hardware slowdown is not. Idle clocks and manually "
            "set ones are left out.",
            "percentunit",
            span=16,
        )
        .height(7)
        .max(1)
        .no_value("No GPU is throttled, or none is measured"),
        (
            "topk(10, rate(rankskew_gpu_throttle_seconds_total"
            f'{{reason=~"sw_power_cap|sync_boost|.+_slowdown",{GPU}}}[$__rate_interval])'
            " > 0.01)",
            "GPU {{gpu}} {{reason}}",
            [shades(ORANGE)],
        ),
    )


def _new_errors(
    title: str, description: str, series: str, legend: str, none: str = NO_ERRORS
) -> timeseries.Panel:
    return (
        time_panel(title, description, "none", span=8)
        .height(6)
        .no_value(none)
        .with_target(query(series, legend))
        .override_by_query("A", [shades(LATE_COLOUR)])
        .override_by_query("B", [shades(ORANGE)])
    )
