"""GPU utilization: the share of time in which kernels ran, and in which memory was busy.

Data that is decoded on the GPU keeps its decoder busy, which neither of them shows.
"""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import gauge, scaled
from exporter.nvml.sample import NvmlSource


class GpuUtilizationCollector:
    """Expose NVML's utilization over the window. A GPU split by MIG has none."""

    name = "gpu_utilization"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        yield gauge(
            "rankskew_gpu_utilization_ratio",
            "Share of the last --nvml.window seconds in which at least one kernel ran, 0 to 1: "
            "the mean of the driver's own samples, each over 1/6 to 1 s (nvmlDeviceGetSamples; "
            "if not supported, nvmlDeviceGetUtilizationRates once a second). A kernel that waits "
            "in a collective counts as running.",
            sample,
            lambda gpu: scaled(gpu.gpu_busy_percent, over=100),
        )
        yield gauge(
            "rankskew_gpu_utilization_min_ratio",
            "Minimum of the samples that rankskew_gpu_utilization_ratio is the mean of, 0 to 1.",
            sample,
            lambda gpu: scaled(gpu.gpu_busy_min_percent, over=100),
        )
        yield gauge(
            "rankskew_gpu_memory_busy_ratio",
            "Share of the last --nvml.window seconds in which the GPU's memory was read or "
            "written, 0 to 1: the mean of nvmlDeviceGetUtilizationRates, read once a second.",
            sample,
            lambda gpu: scaled(gpu.memory_busy_percent, over=100),
        )
        yield gauge(
            "rankskew_gpu_decoder_utilization_ratio",
            "Share of the time in which the GPU's decoder of videos or that of images was busy, "
            "whichever is busier, 0 to 1: the driver's own mean over up to a second "
            "(nvmlDeviceGetDecoderUtilization, nvmlDeviceGetJpgUtilization, read every 5 s).",
            sample,
            lambda gpu: scaled(gpu.decoder_busy_percent, over=100),
        )
