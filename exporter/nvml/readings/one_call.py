"""Readings of one call each: the NVML function, and the fields of GpuSample that it fills."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from exporter.nvml.calls import UNSUPPORTED
from exporter.nvml.readings.fields import field_value
from rank_probe.process.fabric import fabric_trouble

# In degrees Celsius; and an NVML_GPU_RECOVERY_ACTION_... number.
MEMORY_TEMPERATURE: Final = pynvml.NVML_FI_DEV_MEMORY_TEMP
RECOVERY_ACTION: Final = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION


@dataclass(frozen=True, slots=True)
class Reading:
    """One NVML call and the fields of GpuSample that it fills, in the order *unpack* gives."""

    fields: tuple[str, ...]
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    unpack: Callable[[Any], tuple[int, ...]] = lambda value: (value,)
    # 0: each time. What changes slowly, or costs milliseconds, is read less often.
    every_seconds: float = 0.0
    # Called instead if this one is not supported; it fills the same fields.
    older: "Reading | None" = None


def performance_state(handle: object) -> int:
    """Read the P-state, 0 to 15."""
    state = int(pynvml.nvmlDeviceGetPerformanceState(handle))
    if state == pynvml.NVML_PSTATE_UNKNOWN:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return state


def decoder_utilization(handle: object) -> int:
    """Read how busy the decoder of videos or that of images is, whichever is busier, in percent."""
    video, _ = pynvml.nvmlDeviceGetDecoderUtilization(handle)
    try:
        images, _ = pynvml.nvmlDeviceGetJpgUtilization(handle)
    except pynvml.NVMLError as error:
        if error.value not in UNSUPPORTED:
            raise
        images = 0  # Only some GPUs since Ampere have one.
    return int(max(video, images))


def _memory(memory: Any) -> tuple[int, ...]:
    return memory.total, memory.used


_MEMORY: Final = ("memory_total_bytes", "memory_used_bytes")

# In the order they are read.
READINGS: Final = (
    # Version 2 leaves out of *used* what the driver reserves, version 1 includes it.
    Reading(
        _MEMORY,
        pynvml.nvmlDeviceGetMemoryInfo,
        (pynvml.nvmlMemory_v2,),
        _memory,
        older=Reading(_MEMORY, pynvml.nvmlDeviceGetMemoryInfo, (), _memory),
    ),
    Reading(
        ("pcie_link_generation_max",),
        pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
        every_seconds=60.0,
    ),
    Reading(("pcie_link_width",), pynvml.nvmlDeviceGetCurrPcieLinkWidth, every_seconds=5.0),
    Reading(("pcie_link_width_max",), pynvml.nvmlDeviceGetMaxPcieLinkWidth, every_seconds=60.0),
    Reading(("pcie_replays",), pynvml.nvmlDeviceGetPcieReplayCounter, every_seconds=10.0),
    Reading(("sm_clock_megahertz",), pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_SM,)),
    Reading(
        ("memory_clock_megahertz",),
        pynvml.nvmlDeviceGetClockInfo,
        (pynvml.NVML_CLOCK_MEM,),
        every_seconds=5.0,
    ),
    Reading(("performance_state",), performance_state, every_seconds=5.0),
    Reading(("decoder_busy_percent",), decoder_utilization, every_seconds=5.0),
    Reading(("power_milliwatts",), pynvml.nvmlDeviceGetPowerUsage),
    Reading(
        ("power_limit_milliwatts",), pynvml.nvmlDeviceGetEnforcedPowerLimit, every_seconds=30.0
    ),
    Reading(
        ("gpu_temperature_celsius",),
        pynvml.nvmlDeviceGetTemperature,
        (pynvml.NVML_TEMPERATURE_GPU,),
    ),
    Reading(
        ("ecc_corrected_errors",),
        pynvml.nvmlDeviceGetTotalEccErrors,
        (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC),
        every_seconds=30.0,
    ),
    Reading(
        ("ecc_uncorrected_errors",),
        pynvml.nvmlDeviceGetTotalEccErrors,
        (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC),
        every_seconds=30.0,
    ),
    Reading(
        (
            "remapped_rows_corrected",
            "remapped_rows_uncorrected",
            "row_remap_pending",
            "row_remap_failed",
        ),
        pynvml.nvmlDeviceGetRemappedRows,
        unpack=tuple,
        every_seconds=30.0,
    ),
    Reading(("recovery_action",), field_value, (RECOVERY_ACTION,), every_seconds=30.0),
    Reading(("fabric_trouble",), fabric_trouble, (pynvml,), every_seconds=30.0),
    # The slow ones last: each reportedly takes 1 to 3 ms, which 8 GPUs would spend every second.
    Reading(("memory_temperature_celsius",), field_value, (MEMORY_TEMPERATURE,), every_seconds=10),
    Reading(("energy_millijoules",), pynvml.nvmlDeviceGetTotalEnergyConsumption, every_seconds=10),
)
