"""GPU temperature: of the die and of the memory, and the margin until throttling."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import GPU_LABELS, gauge, per_gpu
from exporter.nvml.sample import NvmlSource


class GpuTemperatureCollector:
    """Expose the reading of each temperature sensor of a GPU."""

    name = "gpu_temperature"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        temperature = GaugeMetricFamily(
            "rankskew_gpu_temperature_celsius",
            "Temperature of the GPU's die (read about once a second) or memory (every 5 s), in "
            "degrees Celsius.",
            labels=(*GPU_LABELS, "sensor"),
        )
        per_gpu(temperature, sample, lambda gpu: gpu.gpu_temperature_celsius, "gpu")
        per_gpu(temperature, sample, lambda gpu: gpu.memory_temperature_celsius, "memory")
        yield temperature
        yield gauge(
            "rankskew_gpu_temperature_margin_celsius",
            "Degrees Celsius left until the GPU is throttled, negative beyond that "
            "(nvmlDeviceGetMarginTemperature; if not supported, the die's slowdown threshold "
            "minus its temperature; read every 5 s).",
            sample,
            lambda gpu: gpu.temperature_margin_celsius,
        )
