"""GPU power: current draw, limit, and energy so far."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import counter, gauge, scaled
from exporter.nvml.sample import NvmlSource


class GpuPowerCollector:
    """Expose power, its limit, and the lifetime energy."""

    name = "gpu_power"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        yield gauge(
            "rankskew_gpu_power_watts",
            "Power draw of the GPU, in watts; a mean over one second on most GPUs since Ampere.",
            sample,
            lambda gpu: scaled(gpu.power_milliwatts, over=1000),
        )
        yield gauge(
            "rankskew_gpu_power_limit_watts",
            "Power limit of the GPU, in watts: the lowest of all limits in force.",
            sample,
            lambda gpu: scaled(gpu.power_limit_milliwatts, over=1000),
        )
        yield counter(
            "rankskew_gpu_energy_joules_total",
            "Energy that the GPU has drawn since its driver was loaded, in joules; read every 5 s.",
            sample,
            lambda gpu: scaled(gpu.energy_millijoules, over=1000),
        )
