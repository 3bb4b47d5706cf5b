"""The GPUs' temperatures are in degrees Celsius, each sensor apart."""

from exporter.collectors.gpu_temperature import GpuTemperatureCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_each_sensor_has_its_own_series() -> None:
    """Each sensor is a series of its own."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        gpu_temperature_celsius=60,
        memory_temperature_celsius=72,
    )

    assert series(expose(GpuTemperatureCollector(node(gpu)))) == [
        'rankskew_gpu_temperature_celsius{gpu="3",gpu_uuid="GPU-a",sensor="gpu"} 60.0',
        'rankskew_gpu_temperature_celsius{gpu="3",gpu_uuid="GPU-a",sensor="memory"} 72.0',
    ]
