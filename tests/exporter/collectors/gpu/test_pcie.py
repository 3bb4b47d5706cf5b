"""The GPUs' PCIe links are exposed in base units, one series per fact."""

from exporter.collectors.gpu.pcie import GpuPcieCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_link_is_exposed_in_base_units() -> None:
    """Throughput is in bytes a second, and each fact about the link is a series of its own."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        pcie_transmit_bytes_per_second=5000.0,
        pcie_receive_bytes_per_second=7000.0,
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
