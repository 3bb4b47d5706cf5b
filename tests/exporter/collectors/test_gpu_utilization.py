from exporter.collectors.gpu_utilization import GpuUtilizationCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, expose, node, series


def test_node_without_gpu_or_sample_has_no_series() -> None:
    """Without GPU, or without a fresh sample, there is nothing to expose and nothing fails."""
    assert series(expose(GpuUtilizationCollector(NO_DRIVER))) == []
    assert series(expose(GpuUtilizationCollector(NO_SAMPLE))) == []


def test_percent_become_ratios() -> None:
    """NVML's percent arrive in Prometheus as ratios, and a true 0 is exposed."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        gpu_busy_percent=97,
        memory_busy_percent=0,
    )

    assert series(expose(GpuUtilizationCollector(node(gpu)))) == [
        'rankskew_gpu_utilization_ratio{gpu="3",gpu_uuid="GPU-a"} 0.97',
        'rankskew_gpu_memory_busy_ratio{gpu="3",gpu_uuid="GPU-a"} 0.0',
    ]


def test_gpu_without_a_reading_is_absent_and_hides_nobody() -> None:
    """A GPU that is lost, or cannot tell, has no series; the next one has all of its own."""
    silent = GpuSample(0, up=True, uuid="GPU-silent")
    lost = GpuSample(1, up=False, uuid="GPU-lost")
    fine = GpuSample(
        2,
        up=True,
        uuid="GPU-a",
        gpu_busy_percent=97,
        memory_busy_percent=0,
    )
    text = expose(GpuUtilizationCollector(node(silent, lost, fine)))

    assert len(series(text)) == len(series(expose(GpuUtilizationCollector(node(fine)))))
    assert "GPU-silent" not in text
    assert "GPU-lost" not in text
