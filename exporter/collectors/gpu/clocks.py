"""GPU clocks: the current and highest clocks of the SMs and the memory, and their P-state."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import GPU_LABELS, gauge, per_gpu, scaled
from exporter.nvml.sample import NvmlSource

HERTZ_PER_MEGAHERTZ = 1_000_000


class GpuClocksCollector:
    """Expose the current and the highest SM and memory clocks, and the performance state."""

    name = "gpu_clocks"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        clock = GaugeMetricFamily(
            "rankskew_gpu_clock_hertz",
            "Clock of the GPU's SMs (read about once a second) or memory (every 5 s), in hertz "
            "(nvmlDeviceGetClockInfo).",
            labels=(*GPU_LABELS, "clock"),
        )
        per_gpu(clock, sample, lambda gpu: _hertz(gpu.sm_clock_megahertz), "sm")
        per_gpu(clock, sample, lambda gpu: _hertz(gpu.memory_clock_megahertz), "memory")
        yield clock
        clock_max = GaugeMetricFamily(
            "rankskew_gpu_clock_max_hertz",
            "Highest clock that the GPU's SMs or memory can run at, in hertz.",
            labels=(*GPU_LABELS, "clock"),
        )
        per_gpu(clock_max, sample, lambda gpu: _hertz(gpu.sm_clock_max_megahertz), "sm")
        per_gpu(clock_max, sample, lambda gpu: _hertz(gpu.memory_clock_max_megahertz), "memory")
        yield clock_max
        yield gauge(
            "rankskew_gpu_performance_state",
            "Performance state (P-state) of the GPU: 0 is the fastest, 15 the slowest "
            "(nvmlDeviceGetPerformanceState, read every 5 s).",
            sample,
            lambda gpu: gpu.performance_state,
        )


def _hertz(megahertz: int | None) -> float | None:
    return scaled(megahertz, times=HERTZ_PER_MEGAHERTZ)
