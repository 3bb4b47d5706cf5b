from exporter.collectors.gpu_temperature import GpuTemperatureCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, expose, node, series


def test_node_without_gpu_or_sample_has_no_series() -> None:
    """Without GPU, or without a fresh sample, there is nothing to expose and nothing fails."""
    assert series(expose(GpuTemperatureCollector(NO_DRIVER))) == []
    assert series(expose(GpuTemperatureCollector(NO_SAMPLE))) == []


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


def test_gpu_without_a_reading_is_absent_and_hides_nobody() -> None:
    """A GPU that is lost, or cannot tell, has no series; the next one has all of its own."""
    silent = GpuSample(0, up=True, uuid="GPU-silent")
    lost = GpuSample(1, up=False, uuid="GPU-lost")
    fine = GpuSample(
        2,
        up=True,
        uuid="GPU-a",
        gpu_temperature_celsius=60,
        memory_temperature_celsius=72,
    )
    text = expose(GpuTemperatureCollector(node(silent, lost, fine)))

    assert len(series(text)) == len(series(expose(GpuTemperatureCollector(node(fine)))))
    assert "GPU-silent" not in text
    assert "GPU-lost" not in text
