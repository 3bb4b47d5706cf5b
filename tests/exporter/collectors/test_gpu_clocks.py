from exporter.collectors.gpu_clocks import GpuClocksCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, expose, node, series


def test_node_without_gpu_or_sample_has_no_series() -> None:
    """Without GPU, or without a fresh sample, there is nothing to expose and nothing fails."""
    assert series(expose(GpuClocksCollector(NO_DRIVER))) == []
    assert series(expose(GpuClocksCollector(NO_SAMPLE))) == []


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


def test_gpu_without_a_reading_is_absent_and_hides_nobody() -> None:
    """A GPU that is lost, or cannot tell, has no series; the next one has all of its own."""
    silent = GpuSample(0, up=True, uuid="GPU-silent")
    lost = GpuSample(1, up=False, uuid="GPU-lost")
    fine = GpuSample(
        2,
        up=True,
        uuid="GPU-a",
        sm_clock_megahertz=1755,
        sm_clock_max_megahertz=1980,
        memory_clock_megahertz=2619,
        memory_clock_max_megahertz=2620,
    )
    text = expose(GpuClocksCollector(node(silent, lost, fine)))

    assert len(series(text)) == len(series(expose(GpuClocksCollector(node(fine)))))
    assert "GPU-silent" not in text
    assert "GPU-lost" not in text
