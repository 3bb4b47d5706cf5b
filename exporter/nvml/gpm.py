"""GPM: what the units inside a GPU were doing, as NVML counts it from Hopper on."""

import math
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from exporter.nvml.ask import Ask
from exporter.nvml.window import Window

# Percent of what the unit can do, each with the field of GpuSample that has its mean.
ACTIVITY: Final = {
    pynvml.NVML_GPM_METRIC_SM_UTIL: "sm_active_percent",
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: "sm_occupancy_percent",
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "tensor_active_percent",
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "dram_active_percent",
}
# MiB a second. nvml.h has TX as "from this GPU" and RX as "to this GPU".
PCIE: Final = (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC)
METRICS: Final = (*ACTIVITY, *PCIE)
# nvml.h: NVML refreshes its counters at this pace, so two samples are to be further apart.
REFRESH_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """NVML's memory for a sample. The pointer alone cannot be hashed, as what is asked must be."""

    pointer: Any


class Gpm:
    """Takes a sample of a GPU's counters at each read; what grew since the one before is told.

    So all of the time is covered, and no load is too short to be seen. Where MIG is on, and in a
    virtual machine with a part of a GPU, NVML refuses: sometimes only when a sample is taken.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        # For two samples: [0] is written next, [1] was written last. It belongs to no GPU, is
        # allocated once, and is given back when the process ends.
        self._memory: list[Memory] = []
        self._ask: Ask | None = None
        self._is_supported = False
        self._taken_at = -math.inf
        self._windows: dict[int, Window] = {}
        self._refused: frozenset[int] = frozenset()
        # Each metric that the last two samples told, in NVML's unit.
        self.latest: dict[int, float] = {}

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the means over the window of how active each unit was, in percent."""
        if ask is not self._ask:
            self._begin(ask)
        if not self._is_ready(ask):
            self._refused = frozenset(METRICS)
            self.latest = {}
        elif now - self._taken_at > REFRESH_SECONDS:
            self._sample(ask, now)
        return {
            field: self._windows[metric].mean()
            for metric, field in ACTIVITY.items()
            if metric in self.latest
        }

    def may_tell(self, metric: int) -> bool:
        """Whether this GPU did not refuse *metric*; it may have to be waited for."""
        return metric not in self._refused

    def _begin(self, ask: Ask) -> None:
        """Forget what was learned of the GPU as it was opened before: it may have been reset."""
        self._ask = ask
        self._is_supported = False
        self._taken_at = -math.inf
        self._windows = {metric: Window(self._window_seconds) for metric in ACTIVITY}
        self._refused = frozenset()
        self.latest = {}

    def _is_ready(self, ask: Ask) -> bool:
        self._is_supported = self._is_supported or ask(gpm_support) is True
        while self._is_supported and len(self._memory) < 2:
            memory = ask.raw(gpm_memory)
            if memory is None:
                return False
            self._memory.append(memory)
        return self._is_supported

    def _sample(self, ask: Ask, now: float) -> None:
        """Take a sample into [0], make it the last one, and compare it with the one before."""
        later, earlier = self._memory
        self.latest = {}
        if ask(gpm_sample, later) is None:
            if not ask.supports(gpm_sample, later):
                self._refused = frozenset(METRICS)
            return
        is_first = self._taken_at == -math.inf
        self._memory.reverse()
        self._taken_at = now
        if not is_first:
            self._compare(ask, now, earlier, later)

    def _compare(self, ask: Ask, now: float, earlier: Memory, later: Memory) -> None:
        answers = ask.raw(gpm_metrics, earlier, later)
        if answers is None and ask.supports(gpm_metrics, earlier, later):
            return
        self.latest = answers or {}
        self._refused = frozenset(METRICS) - self.latest.keys()
        for metric in ACTIVITY.keys() & self.latest.keys():
            self._windows[metric].add(now, self.latest[metric])


def gpm_support(handle: object) -> bool:
    """Return True; raise pynvml.NVMLError where the GPU has no GPM."""
    if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return True


def gpm_memory() -> Memory:
    """Allocate memory for a sample."""
    return Memory(pynvml.nvmlGpmSampleAlloc())


def gpm_sample(handle: object, memory: Memory) -> Memory:
    """Take a sample of the GPU's counters."""
    pynvml.nvmlGpmSampleGet(handle, memory.pointer)
    return memory


def gpm_metrics(earlier: Memory, later: Memory) -> dict[int, float]:
    """Return those of METRICS that two samples of a GPU can tell."""
    request = pynvml.c_nvmlGpmMetricsGet_t(
        version=pynvml.NVML_GPM_METRICS_GET_VERSION,
        numMetrics=len(METRICS),
        sample1=earlier.pointer,
        sample2=later.pointer,
    )
    for index, metric in enumerate(METRICS):
        request.metrics[index].metricId = metric
    pynvml.nvmlGpmMetricsGet(request)
    return {
        entry.metricId: entry.value
        for entry in request.metrics[: len(METRICS)]
        if entry.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(entry.value)
    }
