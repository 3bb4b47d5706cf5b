"""The PCIe link of each GPU: what goes over it, how fast it was trained, what it had to repeat."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from exporter.nvml.families import counter, gauge, scaled
from exporter.nvml.sample import NodeSample, NvmlSource

# nvml.h says KB/s and not of which kind; if it means 1024, these series are 2.3 % low.
BYTES_PER_KILOBYTE = 1000


class GpuPcieCollector:
    """Expose throughput, generation, width and replays of each GPU's PCIe link.

    A throughput is what one window of 20 ms a second saw, each direction in a window of its own.
    """

    name = "gpu_pcie"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        yield from _throughput(sample)
        yield from _link(sample)
        yield counter(
            "rankskew_gpu_pcie_replays_total",
            "Packets sent again over the GPU's PCIe link because they arrived damaged.",
            sample,
            lambda gpu: gpu.pcie_replays,
        )


def _throughput(sample: NodeSample | None) -> Iterator[Metric]:
    yield gauge(
        "rankskew_gpu_pcie_transmit_bytes_per_second",
        "Bytes a second from the GPU over PCIe, measured for 20 ms about once a second.",
        sample,
        lambda gpu: scaled(gpu.pcie_transmit_kilobytes_per_second, times=BYTES_PER_KILOBYTE),
    )
    yield gauge(
        "rankskew_gpu_pcie_receive_bytes_per_second",
        "Bytes a second to the GPU over PCIe, measured for 20 ms about once a second.",
        sample,
        lambda gpu: scaled(gpu.pcie_receive_kilobytes_per_second, times=BYTES_PER_KILOBYTE),
    )


def _link(sample: NodeSample | None) -> Iterator[Metric]:
    yield gauge(
        "rankskew_gpu_pcie_link_generation",
        "PCIe generation the link runs at now; power management lowers it on an idle GPU.",
        sample,
        lambda gpu: gpu.pcie_link_generation,
    )
    yield gauge(
        "rankskew_gpu_pcie_link_generation_max",
        "PCIe generation that this GPU can reach in this system.",
        sample,
        lambda gpu: gpu.pcie_link_generation_max,
    )
    yield gauge(
        "rankskew_gpu_pcie_link_width",
        "PCIe lanes in use now.",
        sample,
        lambda gpu: gpu.pcie_link_width,
    )
    yield gauge(
        "rankskew_gpu_pcie_link_width_max",
        "PCIe lanes that this GPU can use in this system.",
        sample,
        lambda gpu: gpu.pcie_link_width_max,
    )
