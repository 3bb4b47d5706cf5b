from exporter.collectors.gpu_memory import GpuMemoryCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, expose, node, series


def test_node_without_gpu_or_sample_has_no_series() -> None:
    """Without GPU, or without a fresh sample, there is nothing to expose and nothing fails."""
    assert series(expose(GpuMemoryCollector(NO_DRIVER))) == []
    assert series(expose(GpuMemoryCollector(NO_SAMPLE))) == []


def test_memory_is_exposed_in_bytes() -> None:
    """Memory is exposed as NVML tells it: used and free need not add up to the total."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        memory_total_bytes=80,
        memory_used_bytes=30,
        memory_free_bytes=48,
    )

    assert series(expose(GpuMemoryCollector(node(gpu)))) == [
        'rankskew_gpu_memory_total_bytes{gpu="3",gpu_uuid="GPU-a"} 80.0',
        'rankskew_gpu_memory_used_bytes{gpu="3",gpu_uuid="GPU-a"} 30.0',
        'rankskew_gpu_memory_free_bytes{gpu="3",gpu_uuid="GPU-a"} 48.0',
    ]


def test_gpu_without_a_reading_is_absent_and_hides_nobody() -> None:
    """A GPU that is lost, or cannot tell, has no series; the next one has all of its own."""
    silent = GpuSample(0, up=True, uuid="GPU-silent")
    lost = GpuSample(1, up=False, uuid="GPU-lost")
    fine = GpuSample(
        2,
        up=True,
        uuid="GPU-a",
        memory_total_bytes=80,
        memory_used_bytes=30,
        memory_free_bytes=48,
    )
    text = expose(GpuMemoryCollector(node(silent, lost, fine)))

    assert len(series(text)) == len(series(expose(GpuMemoryCollector(node(fine)))))
    assert "GPU-silent" not in text
    assert "GPU-lost" not in text
