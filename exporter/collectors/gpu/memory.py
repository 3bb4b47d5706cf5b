"""GPU memory: total and used."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import gauge
from exporter.nvml.sample import NvmlSource


class GpuMemoryCollector:
    """Expose NVML's memory info. Only the total includes what the driver reserves."""

    name = "gpu_memory"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        yield gauge(
            "rankskew_gpu_memory_total_bytes",
            "Memory of the GPU, in bytes, including what the driver reserves "
            "(nvmlDeviceGetMemoryInfo).",
            sample,
            lambda gpu: gpu.memory_total_bytes,
        )
        yield gauge(
            "rankskew_gpu_memory_used_bytes",
            "Memory allocated by processes, in bytes; with drivers before 510 it includes what "
            "the driver reserves.",
            sample,
            lambda gpu: gpu.memory_used_bytes,
        )
