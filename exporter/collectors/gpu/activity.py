"""Activity of the units inside the GPUs: SMs, tensor cores, memory. Hopper and later."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import gauge, scaled
from exporter.nvml.sample import NvmlSource


class GpuActivityCollector:
    """Expose GPM's activity over the window.

    GPUs before Hopper, MIG-partitioned GPUs and fractional GPUs in a virtual machine have none.
    """

    name = "gpu_activity"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        yield gauge(
            "rankskew_gpu_sm_active_ratio",
            "Share of the SMs that were busy, 0 to 1: mean over the last --nvml.window seconds "
            "and over all SMs, from continuous counters (GPM, nvmlGpmMetricsGet).",
            sample,
            lambda gpu: scaled(gpu.sm_active_percent, over=100),
        )
        yield gauge(
            "rankskew_gpu_sm_occupancy_ratio",
            "Active warps as a share of the maximum that the SMs can hold, 0 to 1: mean over the "
            "last --nvml.window seconds (GPM).",
            sample,
            lambda gpu: scaled(gpu.sm_occupancy_percent, over=100),
        )
        yield gauge(
            "rankskew_gpu_tensor_active_ratio",
            "Share of the time in which the SMs performed tensor operations of any kind, 0 to 1: "
            "mean over the last --nvml.window seconds (GPM).",
            sample,
            lambda gpu: scaled(gpu.tensor_active_percent, over=100),
        )
        yield gauge(
            "rankskew_gpu_dram_active_ratio",
            "Share of the peak memory bandwidth that was used, 0 to 1: mean over the last "
            "--nvml.window seconds (GPM).",
            sample,
            lambda gpu: scaled(gpu.dram_active_percent, over=100),
        )
