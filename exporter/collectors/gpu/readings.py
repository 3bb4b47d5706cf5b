"""Every metric of a GPU that is one reading, also of its links: a row each, by its collector."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import Metric

from exporter.collectors.table import MEGA, MILLI, PERCENT, Row, families
from exporter.nvml.sample import REASON_BITS, GpuSample, NodeSample, NvmlSource

GPU_LABELS: Final = ("gpu", "gpu_uuid")


def _active(gpu: GpuSample) -> dict[str, float]:
    # Only active ones: seven zeros for each GPU would be a ninth of all its series.
    reasons = gpu.throttle_reasons or 0
    return {reason: 1.0 for reason, bit in REASON_BITS.items() if reasons & bit}


READINGS: Final[Mapping[str, tuple[Row[GpuSample], ...]]] = {
    "gpu_pcie": (
        Row(
            "rankskew_gpu_pcie_transmit_bytes_per_second",
            "Bytes per second from the GPU over PCIe, mean over the last --nvml.window seconds. "
            "rankskew_gpu_info names the source: gpm and byte_counter count continuously, sampled "
            "(nvmlDeviceGetPcieThroughput) measures 20 ms about every other second.",
            lambda gpu: gpu.pcie_transmit_bytes_per_second,
        ),
        Row(
            "rankskew_gpu_pcie_receive_bytes_per_second",
            "Bytes per second to the GPU over PCIe, mean over the last --nvml.window seconds; same "
            "source as rankskew_gpu_pcie_transmit_bytes_per_second.",
            lambda gpu: gpu.pcie_receive_bytes_per_second,
        ),
        Row(
            "rankskew_gpu_pcie_link_generation",
            "PCIe generation of the link when the GPU was last busy; absent if it was idle for "
            "--nvml.window seconds, because power management may then slow down the link "
            "(nvmlDeviceGetCurrPcieLinkGeneration).",
            lambda gpu: gpu.pcie_link_generation,
        ),
        Row(
            "rankskew_gpu_pcie_link_generation_max",
            "PCIe generation that this GPU can reach in this system "
            "(nvmlDeviceGetMaxPcieLinkGeneration).",
            lambda gpu: gpu.pcie_link_generation_max,
        ),
        Row(
            "rankskew_gpu_pcie_link_width",
            "PCIe lanes in use now (nvmlDeviceGetCurrPcieLinkWidth).",
            lambda gpu: gpu.pcie_link_width,
        ),
        Row(
            "rankskew_gpu_pcie_link_width_max",
            "PCIe lanes that this GPU can use in this system (nvmlDeviceGetMaxPcieLinkWidth).",
            lambda gpu: gpu.pcie_link_width_max,
        ),
        Row(
            "rankskew_gpu_pcie_replays_total",
            "Packets retransmitted over the GPU's PCIe link because they arrived damaged "
            "(nvmlDeviceGetPcieReplayCounter).",
            lambda gpu: gpu.pcie_replays,
        ),
        Row(
            "rankskew_gpu_pcie_errors_total",
            "Errors that the GPU, and the port above it, have seen on the PCIe link between them, "
            "most of them corrected by sending again (aer_dev_correctable, aer_dev_nonfatal and "
            "aer_dev_fatal of both in /sys/bus/pci/devices, read every 30 s).",
            lambda gpu: gpu.pcie_errors,
        ),
    ),
    # All links of a GPU together, and its two worst. A GPU without NVLink has no series.
    "gpu_nvlink": (
        Row(
            "rankskew_gpu_nvlink_transmit_bytes_total",
            "Bytes from the GPU over all its NVLinks, without protocol overhead if the driver "
            "counts it separately (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX; on NVLink 5 "
            "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES), read every 5 s.",
            lambda gpu: gpu.nvlink_transmit_bytes,
        ),
        Row(
            "rankskew_gpu_nvlink_receive_bytes_total",
            "Bytes to the GPU over all its NVLinks (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX; on "
            "NVLink 5 NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES), read every 5 s.",
            lambda gpu: gpu.nvlink_receive_bytes,
        ),
        Row(
            "rankskew_gpu_nvlink_errors_total",
            "Errors on all of the GPU's NVLinks (NVML_FI_DEV_NVLINK_ERROR_DL_*), read every 30 s: "
            "retransmitted packets (replay), retrained links (recovery; on NVLink 5 the only "
            "type), checksum mismatches (crc).",
            lambda gpu: gpu.nvlink_errors,
            ("type",),
        ),
        Row(
            "rankskew_gpu_nvlink_link_errors_total",
            "Errors of all types on one NVLink that is up: only links with errors, and of a GPU's "
            "bad links only the two worst (as rankskew_gpu_nvlink_errors_total), read every 30 s.",
            lambda gpu: gpu.nvlink_link_errors,
            ("link",),
        ),
        Row(
            "rankskew_gpu_nvlink_link_up",
            "0 for an NVLink that is down; links that are up have no series, and of a GPU's bad "
            "links only the two worst (nvmlDeviceGetNvLinkState), read every 30 s.",
            lambda gpu: gpu.nvlink_link_states,
            ("link",),
        ),
        Row(
            "rankskew_gpu_nvlink_links_up",
            "NVLinks that are up (nvmlDeviceGetNvLinkState), read every 30 s.",
            lambda gpu: gpu.nvlink_links_up,
        ),
    ),
    # A GPU split by MIG has none.
    "gpu_utilization": (
        Row(
            "rankskew_gpu_utilization_ratio",
            "Share of the last --nvml.window seconds in which at least one kernel ran, 0 to 1: "
            "the mean of the driver's own samples, each over 1/6 to 1 s (nvmlDeviceGetSamples; "
            "if not supported, nvmlDeviceGetUtilizationRates once a second). A kernel that waits "
            "in a collective counts as running.",
            lambda gpu: gpu.gpu_busy_percent,
            over=PERCENT,
        ),
    ),
    "gpu_memory": (
        Row(
            "rankskew_gpu_memory_total_bytes",
            "Memory of the GPU, in bytes, including what the driver reserves "
            "(nvmlDeviceGetMemoryInfo).",
            lambda gpu: gpu.memory_total_bytes,
        ),
        Row(
            "rankskew_gpu_memory_used_bytes",
            "Memory allocated by processes, in bytes; with drivers before 510 it includes what "
            "the driver reserves.",
            lambda gpu: gpu.memory_used_bytes,
        ),
    ),
    # GPUs before Hopper, those split by MIG and fractional GPUs in a virtual machine have none.
    "gpu_activity": (
        Row(
            "rankskew_gpu_sm_active_ratio",
            "Share of the SMs that were busy, 0 to 1: mean over the last --nvml.window seconds "
            "and over all SMs, from continuous counters (GPM, nvmlGpmMetricsGet).",
            lambda gpu: gpu.sm_active_percent,
            over=PERCENT,
        ),
        Row(
            "rankskew_gpu_sm_occupancy_ratio",
            "Active warps as a share of the maximum that the SMs can hold, 0 to 1: mean over the "
            "last --nvml.window seconds (GPM).",
            lambda gpu: gpu.sm_occupancy_percent,
            over=PERCENT,
        ),
        Row(
            "rankskew_gpu_tensor_active_ratio",
            "Share of the time in which the SMs performed tensor operations of any kind, 0 to 1: "
            "mean over the last --nvml.window seconds (GPM).",
            lambda gpu: gpu.tensor_active_percent,
            over=PERCENT,
        ),
        Row(
            "rankskew_gpu_dram_active_ratio",
            "Share of the peak memory bandwidth that was used, 0 to 1: mean over the last "
            "--nvml.window seconds (GPM).",
            lambda gpu: gpu.dram_active_percent,
            over=PERCENT,
        ),
    ),
    "gpu_clocks": (
        Row(
            "rankskew_gpu_clock_hertz",
            "Clock of the GPU's SMs (read about once a second) or memory (every 5 s), in hertz "
            "(nvmlDeviceGetClockInfo).",
            {
                "sm": lambda gpu: gpu.sm_clock_megahertz,
                "memory": lambda gpu: gpu.memory_clock_megahertz,
            },
            ("clock",),
            times=MEGA,
        ),
        Row(
            "rankskew_gpu_performance_state",
            "Performance state (P-state) of the GPU: 0 is the fastest, 15 the slowest "
            "(nvmlDeviceGetPerformanceState, read every 5 s).",
            lambda gpu: gpu.performance_state,
        ),
    ),
    # NVML's clock event reasons, except those that do not slow down training.
    "gpu_throttle": (
        Row(
            "rankskew_gpu_throttle_active",
            "1 while the GPU's clocks are throttled for this reason, absent while they are not "
            "(nvmlDeviceGetCurrentClocksEventReasons, read about once a second). hw_slowdown "
            "covers all hardware reasons, and can also appear while the clock changes.",
            _active,
            ("reason",),
        ),
        Row(
            "rankskew_gpu_throttle_seconds_total",
            "Time for which the GPU's clocks were throttled for this reason, in seconds since "
            "its readings began: from the driver's own nanosecond counters if it has them "
            "(sw_power_cap, sync_boost; since driver 575 also *_thermal_slowdown and "
            "hw_power_brake_slowdown), else summed from about one reading of the active reasons "
            "per second.",
            lambda gpu: gpu.throttle_seconds,
            ("reason",),
        ),
    ),
    "gpu_power": (
        Row(
            "rankskew_gpu_power_watts",
            "Power draw of the GPU, in watts; a mean over one second on most GPUs since Ampere.",
            lambda gpu: gpu.power_milliwatts,
            over=MILLI,
        ),
        Row(
            "rankskew_gpu_power_limit_watts",
            "Power limit of the GPU, in watts: the lowest of all limits in force.",
            lambda gpu: gpu.power_limit_milliwatts,
            over=MILLI,
        ),
        Row(
            "rankskew_gpu_energy_joules_total",
            "Energy that the GPU drew since its driver was loaded, in joules; read every 10 s.",
            lambda gpu: gpu.energy_millijoules,
            over=MILLI,
        ),
    ),
    "gpu_temperature": (
        Row(
            "rankskew_gpu_temperature_celsius",
            "Temperature of the GPU's die (read about once a second) or memory (every 10 s), in "
            "degrees Celsius.",
            {
                "gpu": lambda gpu: gpu.gpu_temperature_celsius,
                "memory": lambda gpu: gpu.memory_temperature_celsius,
            },
            ("sensor",),
        ),
    ),
    # A GPU without ECC, or with ECC off, has no series.
    "gpu_ecc": (
        Row(
            "rankskew_gpu_ecc_errors_total",
            "ECC errors in all of the GPU's memories over its life, corrected or uncorrected "
            "(nvmlDeviceGetTotalEccErrors, aggregate; read every 30 s).",
            {
                "corrected": lambda gpu: gpu.ecc_corrected_errors,
                "uncorrected": lambda gpu: gpu.ecc_uncorrected_errors,
            },
            ("type",),
        ),
    ),
    # GPUs before Ampere have none.
    "gpu_remapped_rows": (
        Row(
            "rankskew_gpu_remapped_rows_total",
            "Rows of the GPU's memory that were replaced over its life, by the type of error "
            "that caused it (nvmlDeviceGetRemappedRows; read every 30 s).",
            {
                "corrected": lambda gpu: gpu.remapped_rows_corrected,
                "uncorrected": lambda gpu: gpu.remapped_rows_uncorrected,
            },
            ("type",),
        ),
        Row(
            "rankskew_gpu_row_remap_pending",
            "1 if a row will be replaced at the GPU's next reset (nvmlDeviceGetRemappedRows).",
            lambda gpu: gpu.row_remap_pending,
        ),
        Row(
            "rankskew_gpu_row_remap_failed",
            "1 if a row could not be replaced, for example because no spare row was left: the "
            "GPU must be replaced (nvmlDeviceGetRemappedRows).",
            lambda gpu: gpu.row_remap_failed,
        ),
    ),
    "gpu_xid": (
        Row(
            "rankskew_gpu_xid_events_total",
            "XID errors of the GPU, of every kind, since the process that reads the GPUs "
            "started: from /dev/kmsg if the exporter may read it, else from NVML's events, which "
            "lack some kinds. A lost GPU keeps this series.",
            lambda gpu: gpu.xid_events,
        ),
        Row(
            "rankskew_gpu_xid_errors_total",
            "XID errors of the GPU by number, counted like rankskew_gpu_xid_events_total: at "
            "most 3 kinds, at most one of them caused by programs (13, 31, 43, 45, 68, 109); all "
            "others are only in rankskew_gpu_xid_events_total.",
            lambda gpu: gpu.xid_errors,
            ("xid",),
        ),
    ),
    # Drivers before 570 have none.
    "gpu_recovery": (
        Row(
            "rankskew_gpu_recovery_action",
            "Recovery action that the driver advises, by NVML's number: 0 nothing, 1 reset the "
            "GPU, 2 reboot the node, 3 drain its peer-to-peer traffic, 4 drain and reset, 5 "
            "recover the IMEX domain, 6 reset the bus, 7 reboot the system (field 230; read "
            "every 30 s).",
            lambda gpu: gpu.recovery_action,
        ),
    ),
}


class GpuReadingsCollector:
    """Expose the metrics that READINGS has for the collector *name*."""

    interval_seconds = 0.0

    def __init__(self, name: str, nvml: NvmlSource) -> None:
        self.name = name
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        yield from families(READINGS[self.name], GPU_LABELS, labelled(self._nvml.latest()))


def labelled(sample: NodeSample | None) -> list[tuple[tuple[str, str], GpuSample]]:
    """Return the values of GPU_LABELS for each GPU, with its sample; lost GPUs are included."""
    return [((str(gpu.index), gpu.uuid), gpu) for gpu in (() if sample is None else sample.gpus)]
