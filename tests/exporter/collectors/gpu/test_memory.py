"""The GPUs' memory is exposed in bytes, as NVML reports it."""

from exporter.collectors.gpu.memory import GpuMemoryCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_memory_is_exposed_in_bytes() -> None:
    """Used memory is what processes have allocated, as NVML reports it."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        memory_total_bytes=80,
        memory_used_bytes=30,
    )

    assert series(expose(GpuMemoryCollector(node(gpu)))) == [
        'rankskew_gpu_memory_total_bytes{gpu="3",gpu_uuid="GPU-a"} 80.0',
        'rankskew_gpu_memory_used_bytes{gpu="3",gpu_uuid="GPU-a"} 30.0',
    ]
