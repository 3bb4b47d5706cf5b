"""The GPUs' utilisation is a ratio, and 0 is a reading."""

from exporter.collectors.gpu.utilization import GpuUtilizationCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_percent_become_ratios() -> None:
    """NVML's percent arrive in Prometheus as ratios, and a true 0 is exposed."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        gpu_busy_percent=97.5,
        gpu_busy_min_percent=12,
        memory_busy_percent=0,
    )

    assert series(expose(GpuUtilizationCollector(node(gpu)))) == [
        'rankskew_gpu_utilization_ratio{gpu="3",gpu_uuid="GPU-a"} 0.975',
        'rankskew_gpu_utilization_min_ratio{gpu="3",gpu_uuid="GPU-a"} 0.12',
        'rankskew_gpu_memory_busy_ratio{gpu="3",gpu_uuid="GPU-a"} 0.0',
    ]
