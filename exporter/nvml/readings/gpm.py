"""GPM: what the units inside a GPU were doing, as NVML counts it from Hopper on."""

import math
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.window import Window

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
# All of the time is covered however seldom it is asked, so it is asked as often as a scrape needs.
SAMPLE_SECONDS: Final = 5.0
# The first reading must not take that long. Twice the interval, because a call may be late.
FIRST_SECONDS: Final = 2 * REFRESH_SECONDS


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """NVML's memory for a sample. The pointer alone cannot be hashed, as what is asked must be."""

    pointer: Any


class Gpm:
    """Samples a GPU's counters at intervals, and returns what they gained since the last sample.

    So all of the time is covered, and no load is too short to be seen. Where MIG is on, and in a
    virtual machine with a part of a GPU, NVML refuses: sometimes only when a sample is taken.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._every_seconds = min(SAMPLE_SECONDS, window_seconds / 3)
        self._due = -math.inf
        # For two samples: [0] is written next, [1] was written last. It belongs to no GPU, is
        # allocated once, and is given back when the process ends.
        self._memory: list[Memory] = []
        self._ask: Ask | None = None
        self._is_supported = False
        self._taken_at = -math.inf
        # How many pairs of samples were compared. The first is of a shorter time than all others.
        self._pairs = 0
        self._windows: dict[int, Window] = {}
        self._refused: frozenset[int] = frozenset()
        # The metrics that the last two samples told.
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
        """Return the mean over the window in NVML's unit; None: the last sample did not tell."""
        return self._windows[metric].mean() if metric in self._told else None

    def may_tell(self, metric: int) -> bool:
        """Whether this GPU did not refuse *metric*; it may have to be waited for."""
        return metric not in self._refused

    def _begin(self, ask: Ask) -> None:
        """Forget what was learned of the GPU as it was opened before: it may have been reset."""
        self._ask = ask
        self._is_supported = False
        self._due = self._taken_at = -math.inf
        self._windows = self._new_windows()
        self._refused = frozenset()
        self._told = frozenset()

    def _new_windows(self) -> dict[int, Window]:
        return {metric: Window(self._window_seconds) for metric in METRICS}

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

        After a failure that passes the next reading tries again: it then covers that time, too.
        """
        later, earlier = self._memory
        self._told = frozenset()
        if ask(gpm_sample, later) is None:
            if not ask.supports(gpm_sample, later):
                self._refused = frozenset(METRICS)
            return
        # A sample from before the window is not worth comparing with.
        is_first = now - self._taken_at > self._window_seconds
        if is_first:
            self._pairs = 0
        elif not self._compare(ask, now, earlier, later):
            return
        self._due = now + (FIRST_SECONDS if is_first else self._every_seconds)
        self._taken_at = now
        self._memory.reverse()

    def _compare(self, ask: Ask, now: float, earlier: Memory, later: Memory) -> bool:
        """Take in what two samples tell; return False if that failed and may be tried again."""
        answers = ask.raw(gpm_metrics, earlier, later)
        if answers is None and ask.supports(gpm_metrics, earlier, later):
            return False
        if self._pairs == 1:
            self._windows = self._new_windows()  # The short one must not weigh as much as these.
        self._pairs += 1
        for metric, value in (answers or {}).items():
            self._windows[metric].add(now, value)
        self._told = frozenset(answers or ())
        self._refused = frozenset(METRICS) - self._told
        return True


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
