"""The PCIe link of each GPU: throughput, generation and width, and retransmissions."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import counter, gauge
from exporter.nvml.sample import NodeSample, NvmlSource


class GpuPcieCollector:
    """Expose throughput, generation, width and replays of each GPU's PCIe link.

    The label `pcie_source` of rankskew_gpu_info names the source of the throughput.
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
            "Packets retransmitted over the GPU's PCIe link because they arrived damaged "
            "(nvmlDeviceGetPcieReplayCounter).",
            sample,
            lambda gpu: gpu.pcie_replays,
        )
        yield counter(
            "rankskew_gpu_pcie_errors_total",
            "Errors that the GPU, and the port above it, have seen on the PCIe link between them, "
            "most of them corrected by sending again (aer_dev_correctable, aer_dev_nonfatal and "
            "aer_dev_fatal of both in /sys/bus/pci/devices, read every 30 s).",
            sample,
            lambda gpu: gpu.pcie_errors,
        )


def _throughput(sample: NodeSample | None) -> Iterator[Metric]:
    yield gauge(
        "rankskew_gpu_pcie_transmit_bytes_per_second",
        "Bytes per second from the GPU over PCIe, mean over the last --nvml.window seconds. "
        "rankskew_gpu_info names the source: gpm and byte_counter count continuously, sampled "
        "(nvmlDeviceGetPcieThroughput) measures 20 ms about every other second.",
        sample,
        lambda gpu: gpu.pcie_transmit_bytes_per_second,
    )
    yield gauge(
        "rankskew_gpu_pcie_receive_bytes_per_second",
        "Bytes per second to the GPU over PCIe, mean over the last --nvml.window seconds; same "
        "source as rankskew_gpu_pcie_transmit_bytes_per_second.",
        sample,
        lambda gpu: gpu.pcie_receive_bytes_per_second,
    )


def _link(sample: NodeSample | None) -> Iterator[Metric]:
    yield gauge(
        "rankskew_gpu_pcie_link_generation",
        "PCIe generation of the link when the GPU was last busy; absent if it was idle for "
        "--nvml.window seconds, because power management may then slow down the link "
        "(nvmlDeviceGetCurrPcieLinkGeneration).",
        sample,
        lambda gpu: gpu.pcie_link_generation,
    )
    yield gauge(
        "rankskew_gpu_pcie_link_generation_max",
        "PCIe generation that this GPU can reach in this system "
        "(nvmlDeviceGetMaxPcieLinkGeneration).",
        sample,
        lambda gpu: gpu.pcie_link_generation_max,
    )
    yield gauge(
        "rankskew_gpu_pcie_link_width",
        "PCIe lanes in use now (nvmlDeviceGetCurrPcieLinkWidth).",
        sample,
        lambda gpu: gpu.pcie_link_width,
    )
    yield gauge(
        "rankskew_gpu_pcie_link_width_max",
        "PCIe lanes that this GPU can use in this system (nvmlDeviceGetMaxPcieLinkWidth).",
        sample,
        lambda gpu: gpu.pcie_link_width_max,
    )
