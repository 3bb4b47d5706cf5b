"""GPU utilisation: the share of time in which kernels ran, and in which memory was busy."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from exporter.nvml.families import gauge, scaled
from exporter.nvml.sample import NvmlSource


class GpuUtilizationCollector:
    """Expose NVML's utilisation rates. A GPU split by MIG has none."""

    name = "gpu_utilization"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        yield gauge(
            "rankskew_gpu_utilization_ratio",
            "Share of NVML's last sample period in which at least one kernel ran, 0 to 1. A "
            "kernel that waits in a collective counts as running.",
            sample,
            lambda gpu: scaled(gpu.gpu_busy_percent, over=100),
        )
        yield gauge(
            "rankskew_gpu_memory_busy_ratio",
            "Share of NVML's last sample period in which the GPU's memory was read or "
            "written, 0 to 1.",
            sample,
            lambda gpu: scaled(gpu.memory_busy_percent, over=100),
        )
