from exporter.collectors.gpu_pcie import GpuPcieCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, expose, node, series


def test_node_without_gpu_or_sample_has_no_series() -> None:
    """Without GPU, or without a fresh sample, there is nothing to expose and nothing fails."""
    assert series(expose(GpuPcieCollector(NO_DRIVER))) == []
    assert series(expose(GpuPcieCollector(NO_SAMPLE))) == []


def test_link_is_exposed_in_base_units() -> None:
    """Throughput is in bytes a second, and each fact about the link is a series of its own."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        pcie_transmit_kilobytes_per_second=5,
        pcie_receive_kilobytes_per_second=7,
        pcie_link_generation=4,
        pcie_link_generation_max=5,
        pcie_link_width=8,
        pcie_link_width_max=16,
        pcie_replays=0,
    )

    assert series(expose(GpuPcieCollector(node(gpu)))) == [
        'rankskew_gpu_pcie_transmit_bytes_per_second{gpu="3",gpu_uuid="GPU-a"} 5000.0',
        'rankskew_gpu_pcie_receive_bytes_per_second{gpu="3",gpu_uuid="GPU-a"} 7000.0',
        'rankskew_gpu_pcie_link_generation{gpu="3",gpu_uuid="GPU-a"} 4.0',
        'rankskew_gpu_pcie_link_generation_max{gpu="3",gpu_uuid="GPU-a"} 5.0',
        'rankskew_gpu_pcie_link_width{gpu="3",gpu_uuid="GPU-a"} 8.0',
        'rankskew_gpu_pcie_link_width_max{gpu="3",gpu_uuid="GPU-a"} 16.0',
        'rankskew_gpu_pcie_replays_total{gpu="3",gpu_uuid="GPU-a"} 0.0',
    ]


def test_gpu_without_a_reading_is_absent_and_hides_nobody() -> None:
    """A GPU that is lost, or cannot tell, has no series; the next one has all of its own."""
    silent = GpuSample(0, up=True, uuid="GPU-silent")
    lost = GpuSample(1, up=False, uuid="GPU-lost")
    fine = GpuSample(
        2,
        up=True,
        uuid="GPU-a",
        pcie_transmit_kilobytes_per_second=5,
        pcie_receive_kilobytes_per_second=7,
        pcie_link_generation=4,
        pcie_link_generation_max=5,
        pcie_link_width=8,
        pcie_link_width_max=16,
        pcie_replays=0,
    )
    text = expose(GpuPcieCollector(node(silent, lost, fine)))

    assert len(series(text)) == len(series(expose(GpuPcieCollector(node(fine)))))
    assert "GPU-silent" not in text
    assert "GPU-lost" not in text
