"""GPU temperature: of the die and of the memory."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.nvml.families import GPU_LABELS, per_gpu
from exporter.nvml.sample import NvmlSource


class GpuTemperatureCollector:
    """Expose what each temperature sensor of a GPU reads."""

    name = "gpu_temperature"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        temperature = GaugeMetricFamily(
            "rankskew_gpu_temperature_celsius",
            "Temperature of the GPU's die or memory, in degrees Celsius.",
            labels=(*GPU_LABELS, "sensor"),
        )
        per_gpu(temperature, sample, lambda gpu: gpu.gpu_temperature_celsius, "gpu")
        per_gpu(temperature, sample, lambda gpu: gpu.memory_temperature_celsius, "memory")
        yield temperature
