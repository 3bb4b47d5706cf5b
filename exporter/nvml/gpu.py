"""One GPU: opens it, reads all it can tell, and keeps apart "never", "not now" and "lost"."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pynvml

from exporter.nvml.backoff import Backoff
from exporter.nvml.calls import GPU_LOST, PROCESS_OBSOLETE, UNSUPPORTED, CallFailed, Calls
from exporter.nvml.sample import GpuSample
from exporter.nvml.throttle import ThrottleSeconds

# A driver update or a changed permission is noticed within the hour, at no cost before.
UNSUPPORTED_FOR_SECONDS: Final = 3600.0
LOST_CAP_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One NVML call and the fields of GpuSample that it fills, in the order *unpack* gives."""

    fields: tuple[str, ...]
    function: Callable[..., Any]
    arguments: tuple[int, ...] = ()
    unpack: Callable[[Any], tuple[int, ...]] = lambda value: (value,)


def memory_temperature(handle: object) -> int:
    """Read the memory's temperature, a field value: those report errors one by one."""
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def pci_bus_id(handle: object) -> str:
    """Read where the GPU sits on the PCI bus."""
    return str(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def _memory(memory: Any) -> tuple[int, ...]:
    return memory.total, memory.used, memory.free


_MEMORY: Final = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes")
_REASONS: Final = ("throttle_reasons",)

# In the order they are read. Of two rows for the same fields the later one is the older function,
# asked only where the newer one is not supported.
READINGS: Final = (
    Reading(_REASONS, pynvml.nvmlDeviceGetCurrentClocksEventReasons),
    Reading(_REASONS, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons),
    Reading(
        ("gpu_busy_percent", "memory_busy_percent"),
        pynvml.nvmlDeviceGetUtilizationRates,
        unpack=lambda rates: (rates.gpu, rates.memory),
    ),
    # Version 2 leaves what the driver reserves out of *used*, version 1 counts it in.
    Reading(_MEMORY, pynvml.nvmlDeviceGetMemoryInfo, (pynvml.nvmlMemory_v2,), _memory),
    Reading(_MEMORY, pynvml.nvmlDeviceGetMemoryInfo, (), _memory),
    Reading(("pcie_link_generation",), pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
    Reading(("pcie_link_generation_max",), pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
    Reading(("pcie_link_width",), pynvml.nvmlDeviceGetCurrPcieLinkWidth),
    Reading(("pcie_link_width_max",), pynvml.nvmlDeviceGetMaxPcieLinkWidth),
    Reading(("pcie_replays",), pynvml.nvmlDeviceGetPcieReplayCounter),
    Reading(("sm_clock_megahertz",), pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_SM,)),
    Reading(("memory_clock_megahertz",), pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_MEM,)),
    Reading(("sm_clock_max_megahertz",), pynvml.nvmlDeviceGetMaxClockInfo, (pynvml.NVML_CLOCK_SM,)),
    Reading(
        ("memory_clock_max_megahertz",), pynvml.nvmlDeviceGetMaxClockInfo, (pynvml.NVML_CLOCK_MEM,)
    ),
    Reading(("power_milliwatts",), pynvml.nvmlDeviceGetPowerUsage),
    Reading(("power_limit_milliwatts",), pynvml.nvmlDeviceGetEnforcedPowerLimit),
    Reading(
        ("gpu_temperature_celsius",),
        pynvml.nvmlDeviceGetTemperature,
        (pynvml.NVML_TEMPERATURE_GPU,),
    ),
    # The slow ones last: each is said to take 1 to 3 ms.
    Reading(("memory_temperature_celsius",), memory_temperature),
    Reading(("energy_millijoules",), pynvml.nvmlDeviceGetTotalEnergyConsumption),
)

# Apart from the rest: each of the two counts bytes for 20 ms before it answers.
PCIE_READINGS: Final = (
    Reading(
        ("pcie_transmit_kilobytes_per_second",),
        pynvml.nvmlDeviceGetPcieThroughput,
        (pynvml.NVML_PCIE_UTIL_TX_BYTES,),
    ),
    Reading(
        ("pcie_receive_kilobytes_per_second",),
        pynvml.nvmlDeviceGetPcieThroughput,
        (pynvml.NVML_PCIE_UTIL_RX_BYTES,),
    ),
)


class Gpu:
    """One GPU by its NVML index.

    read() and read_pcie() may run at the same time, each in one thread at most; both may hang for
    ever in the driver.
    """

    def __init__(
        self, index: int, calls: Calls, retry_seconds: float, longest_gap_seconds: float
    ) -> None:
        self.index = index
        self._calls = calls
        self._backoff = Backoff(retry_seconds, LOST_CAP_SECONDS)
        self._throttle_seconds = ThrottleSeconds(longest_gap_seconds)
        self._handle: Any = None
        # What is left to tell when it is lost.
        self._down = GpuSample(index, up=False)
        self._open_again_at = 0.0
        self._ask_again_at: dict[Reading, float] = {}

    def down(self) -> GpuSample:
        """Return the sample of a GPU that does not answer."""
        return self._down

    def read(self) -> GpuSample:
        """Read everything but the PCIe throughput; raise CallFailed if the driver was replaced."""
        if time.monotonic() < self._open_again_at:
            return self.down()
        try:
            if self._handle is None:
                self._open()
            values = self._values(self._handle, READINGS)
        except CallFailed as failure:
            if failure.code in PROCESS_OBSOLETE:
                raise
            return self._lose()
        self._backoff.reset()
        return self._sample(values)

    def read_pcie(self) -> dict[str, int]:
        """Read the PCIe throughput: fields of GpuSample with their values. Takes 40 ms or more."""
        handle = self._handle  # Read once: read() may lose the GPU meanwhile.
        if handle is None:
            return {}
        try:
            return self._values(handle, PCIE_READINGS)
        except CallFailed as failure:
            if failure.code in PROCESS_OBSOLETE:
                raise
            return {}  # Lost: read() finds that out too, and says so.

    def _open(self) -> None:
        handle = self._calls(self.index, pynvml.nvmlDeviceGetHandleByIndex, self.index)
        self._down = GpuSample(
            self.index,
            up=False,
            uuid=self._text(pynvml.nvmlDeviceGetUUID, handle),
            name=self._text(pynvml.nvmlDeviceGetName, handle),
            pci_bus_id=self._text(pci_bus_id, handle),
        )
        self._handle = handle

    def _text(self, function: Callable[[Any], str], handle: object) -> str:
        try:
            return self._calls(self.index, function, handle)
        except CallFailed as failure:
            if failure.code in UNSUPPORTED:
                return ""
            raise

    def _lose(self) -> GpuSample:
        self._handle = None
        self._open_again_at = time.monotonic() + self._backoff.next_seconds()
        return self.down()

    def _sample(self, values: dict[str, int]) -> GpuSample:
        seconds = None
        if "throttle_reasons" in values:
            self._throttle_seconds.add(values["throttle_reasons"], time.monotonic())
            seconds = self._throttle_seconds.seconds()
        return replace(
            self._down,
            up=True,
            throttle_seconds=seconds,
            **values,  # type: ignore[arg-type]  # READINGS names fields that hold numbers
        )

    def _values(self, handle: object, readings: tuple[Reading, ...]) -> dict[str, int]:
        """Return the fields that could be read; raise CallFailed if the GPU is lost."""
        values: dict[str, int] = {}
        settled: set[str] = set()
        failure: CallFailed | None = None
        for reading in readings:
            if reading.fields[0] in settled or not self._is_supported(reading):
                continue
            settled.update(reading.fields)
            try:
                values.update(zip(reading.fields, self._read(handle, reading), strict=True))
            except CallFailed as error:
                if error.code in GPU_LOST | PROCESS_OBSOLETE:
                    raise
                if error.code in UNSUPPORTED:
                    settled.difference_update(reading.fields)
                    self._ask_again_at[reading] = time.monotonic() + UNSUPPORTED_FOR_SECONDS
                else:
                    failure = error
        if failure is not None and not values:
            raise failure  # A GPU that has only errors to tell is not up.
        return values

    def _is_supported(self, reading: Reading) -> bool:
        return time.monotonic() >= self._ask_again_at.get(reading, 0.0)

    def _read(self, handle: object, reading: Reading) -> tuple[int, ...]:
        return reading.unpack(self._calls(self.index, reading.function, handle, *reading.arguments))
