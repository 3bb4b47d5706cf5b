"""Activity of the units inside the GPUs is exposed as ratios."""

from exporter.collectors.gpu.activity import GpuActivityCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_gpu_without_gpm_has_no_series() -> None:
    """A GPU before Hopper is not one that rests."""
    assert series(expose(GpuActivityCollector(node(GpuSample(0, up=True, uuid="GPU-a"))))) == []


def test_activity_is_exposed_as_ratios() -> None:
    """NVML's percent are shares of 1, each unit a series of its own."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        sm_active_percent=80.0,
        sm_occupancy_percent=50.0,
        tensor_active_percent=0.0,
        dram_active_percent=35.0,
    )

    assert series(expose(GpuActivityCollector(node(gpu)))) == [
        'rankskew_gpu_sm_active_ratio{gpu="3",gpu_uuid="GPU-a"} 0.8',
        'rankskew_gpu_sm_occupancy_ratio{gpu="3",gpu_uuid="GPU-a"} 0.5',
        'rankskew_gpu_tensor_active_ratio{gpu="3",gpu_uuid="GPU-a"} 0.0',
        'rankskew_gpu_dram_active_ratio{gpu="3",gpu_uuid="GPU-a"} 0.35',
    ]
