"""The GPUs' clocks are exposed in hertz, separately for SMs and memory."""

from exporter.collectors.gpu.clocks import GpuClocksCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_clocks_are_exposed_in_hertz() -> None:
    """NVML's megahertz arrive in Prometheus as hertz, by clock."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        sm_clock_megahertz=1755,
        sm_clock_max_megahertz=1980,
        memory_clock_megahertz=2619,
        memory_clock_max_megahertz=2620,
    )

    assert series(expose(GpuClocksCollector(node(gpu)))) == [
        'rankskew_gpu_clock_hertz{clock="sm",gpu="3",gpu_uuid="GPU-a"} 1.755e+09',
        'rankskew_gpu_clock_hertz{clock="memory",gpu="3",gpu_uuid="GPU-a"} 2.619e+09',
        'rankskew_gpu_clock_max_hertz{clock="sm",gpu="3",gpu_uuid="GPU-a"} 1.98e+09',
        'rankskew_gpu_clock_max_hertz{clock="memory",gpu="3",gpu_uuid="GPU-a"} 2.62e+09',
    ]
