"""GPM: how busy the units inside a GPU were, as counted by NVML from Hopper on."""

import math
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.window import ReadingWindow

# In percent of the unit's capacity, each with the field of GpuSample for its mean.
ACTIVITY: Final = {
    pynvml.NVML_GPM_METRIC_SM_UTIL: "sm_active_percent",
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: "sm_occupancy_percent",
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "tensor_active_percent",
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "dram_active_percent",
}
# MiB a second. nvml.h has TX as "from this GPU" and RX as "to this GPU".
PCIE: Final = (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC)
METRICS: Final = (*ACTIVITY, *PCIE)
# nvml.h: NVML refreshes its counters at this interval, so two samples must be further apart.
REFRESH_SECONDS: Final = 0.1
# Sampling covers all of the time at any interval, so sample only as often as a scrape needs.
SAMPLE_SECONDS: Final = 5.0
# The first reading must not take that long. Twice the interval, because a call may be late.
FIRST_SECONDS: Final = 2 * REFRESH_SECONDS


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """NVML's memory for a sample; unlike the bare pointer it is hashable, as *ask* requires."""

    pointer: Any


class Gpm:
    """Samples a GPU's counters at intervals, and returns what they gained since the last sample.

    This covers all of the time, so no load is too short to be seen. With MIG on, and for a
    fractional GPU in a virtual machine, NVML refuses, sometimes only when a sample is taken.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._every_seconds = min(SAMPLE_SECONDS, window_seconds / 3)
        self._due = -math.inf
        # For two samples: [0] is written next, [1] was written last. It belongs to no GPU, is
        # allocated once, and is freed when the process ends.
        self._memory: list[Memory] = []
        self._ask: Ask | None = None
        self._is_supported = False
        self._taken_at = -math.inf
        # How many pairs of samples were compared. The first covers less time than all others.
        self._pairs = 0
        self._windows: dict[int, ReadingWindow] = {}
        self._refused: frozenset[int] = frozenset()
        # The metrics that the last two samples provided.
        self._told: frozenset[int] = frozenset()

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the means over the window of how active each unit was, in percent."""
        if ask is not self._ask:
            self._begin(ask)
        if not self._is_ready(ask):
            self._refused = frozenset(METRICS)
            self._told = frozenset()
        elif now >= self._due:
            self._sample(ask, now)
        return {
            field: self.mean(metric) for metric, field in ACTIVITY.items() if metric in self._told
        }

    def mean(self, metric: int) -> float | None:
        """Return the mean over the window in NVML's unit; None: the last sample had no value."""
        return self._windows[metric].mean() if metric in self._told else None

    def may_tell(self, metric: int) -> bool:
        """Whether to keep waiting for *metric*: the GPU has not refused it."""
        return metric not in self._refused

    def _begin(self, ask: Ask) -> None:
        """Forget what is known from before the GPU was reopened: it may have been reset."""
        self._ask = ask
        self._is_supported = False
        self._due = self._taken_at = -math.inf
        self._windows = self._new_windows()
        self._refused = frozenset()
        self._told = frozenset()

    def _new_windows(self) -> dict[int, ReadingWindow]:
        return {metric: ReadingWindow(self._window_seconds) for metric in METRICS}

    def _is_ready(self, ask: Ask) -> bool:
        self._is_supported = self._is_supported or ask(gpm_support) is True
        while self._is_supported and len(self._memory) < 2:
            memory = ask.raw(gpm_memory)
            if memory is None:
                return False
            self._memory.append(memory)
        return self._is_supported

    def _sample(self, ask: Ask, now: float) -> None:
        """Take a sample into [0], compare it with the last one, and make it the last one.

        After a temporary failure the next reading tries again, and then covers that time too.
        """
        later, earlier = self._memory
        self._told = frozenset()
        if ask(gpm_sample, later) is None:
            if not ask.supports(gpm_sample, later):
                self._refused = frozenset(METRICS)
            return
        # A sample from before the window is too old to compare with.
        is_first = now - self._taken_at > self._window_seconds
        if is_first:
            self._pairs = 0
        elif not self._compare(ask, now, earlier, later):
            return
        self._due = now + (FIRST_SECONDS if is_first else self._every_seconds)
        self._taken_at = now
        self._memory.reverse()

    def _compare(self, ask: Ask, now: float, earlier: Memory, later: Memory) -> bool:
        """Record the difference of two samples; return False if that failed and may be retried."""
        answers = ask.raw(gpm_metrics, earlier, later)
        if answers is None and ask.supports(gpm_metrics, earlier, later):
            return False
        if self._pairs == 1:
            self._windows = self._new_windows()  # The short first pair must not weigh as much.
        self._pairs += 1
        for metric, value in (answers or {}).items():
            self._windows[metric].add(now, value)
        self._told = frozenset(answers or ())
        self._refused = frozenset(METRICS) - self._told
        return True


def gpm_support(handle: object) -> bool:
    """Return True; raise pynvml.NVMLError if the GPU has no GPM."""
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
    """Return those of METRICS that two samples of a GPU provide."""
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
