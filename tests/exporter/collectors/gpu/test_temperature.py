"""The GPUs' temperatures are in degrees Celsius, each sensor apart, with what is left."""

from exporter.collectors.gpu.temperature import GpuTemperatureCollector
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


def test_margin_beyond_the_threshold_is_negative() -> None:
    """A GPU that is too hot has less than no degree left."""
    gpu = GpuSample(3, up=True, uuid="GPU-a", temperature_margin_celsius=-1)

    assert series(expose(GpuTemperatureCollector(node(gpu)))) == [
        'rankskew_gpu_temperature_margin_celsius{gpu="3",gpu_uuid="GPU-a"} -1.0',
    ]
