"""Every metric of a GPU's PCIe and NVLinks that is one reading: a row each, by its collector."""

from collections.abc import Mapping
from typing import Final

from exporter.collectors.table import Row
from exporter.nvml.sample import GpuSample

LINKS: Final[Mapping[str, tuple[Row[GpuSample], ...]]] = {
    "gpu_pcie": (
        Row(
            "rankskew_gpu_pcie_transmit_bytes_per_second",
            "Bytes per second from the GPU over PCIe, mean over the last --nvml.window seconds. "
            "rankskew_gpu_info names the source: gpm and byte_counter count continuously, sampled "
            "(nvmlDeviceGetPcieThroughput) measures 20 ms about every other second.",
            lambda gpu: gpu.pcie_transmit_bytes_per_second,
        ),
        Row(
            "rankskew_gpu_pcie_receive_bytes_per_second",
            "Bytes per second to the GPU over PCIe, mean over the last --nvml.window seconds; same "
            "source as rankskew_gpu_pcie_transmit_bytes_per_second.",
            lambda gpu: gpu.pcie_receive_bytes_per_second,
        ),
        Row(
            "rankskew_gpu_pcie_link_generation",
            "PCIe generation of the link when the GPU was last busy; absent if it was idle for "
            "--nvml.window seconds, because power management may then slow down the link "
            "(nvmlDeviceGetCurrPcieLinkGeneration).",
            lambda gpu: gpu.pcie_link_generation,
        ),
        Row(
            "rankskew_gpu_pcie_link_generation_max",
            "PCIe generation that this GPU can reach in this system "
            "(nvmlDeviceGetMaxPcieLinkGeneration).",
            lambda gpu: gpu.pcie_link_generation_max,
        ),
        Row(
            "rankskew_gpu_pcie_link_width",
            "PCIe lanes in use now (nvmlDeviceGetCurrPcieLinkWidth).",
            lambda gpu: gpu.pcie_link_width,
        ),
        Row(
            "rankskew_gpu_pcie_link_width_max",
            "PCIe lanes that this GPU can use in this system (nvmlDeviceGetMaxPcieLinkWidth).",
            lambda gpu: gpu.pcie_link_width_max,
        ),
        Row(
            "rankskew_gpu_pcie_replays_total",
            "Packets retransmitted over the GPU's PCIe link because they arrived damaged "
            "(nvmlDeviceGetPcieReplayCounter).",
            lambda gpu: gpu.pcie_replays,
        ),
        Row(
            "rankskew_gpu_pcie_errors_total",
            "Errors that the GPU, and the port above it, have seen on the PCIe link between them, "
            "most of them corrected by sending again (aer_dev_correctable, aer_dev_nonfatal and "
            "aer_dev_fatal of both in /sys/bus/pci/devices, read every 30 s).",
            lambda gpu: gpu.pcie_errors,
        ),
    ),
    # All links of a GPU together, and its two worst. A GPU without NVLink has no series.
    "gpu_nvlink": (
        Row(
            "rankskew_gpu_nvlink_transmit_bytes_total",
            "Bytes from the GPU over all its NVLinks, without protocol overhead if the driver "
            "counts it separately (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX; on NVLink 5 "
            "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES), read every 5 s.",
            lambda gpu: gpu.nvlink_transmit_bytes,
        ),
        Row(
            "rankskew_gpu_nvlink_receive_bytes_total",
            "Bytes to the GPU over all its NVLinks (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX; on "
            "NVLink 5 NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES), read every 5 s.",
            lambda gpu: gpu.nvlink_receive_bytes,
        ),
        Row(
            "rankskew_gpu_nvlink_errors_total",
            "Errors on all of the GPU's NVLinks (NVML_FI_DEV_NVLINK_ERROR_DL_*), read every 30 s: "
            "retransmitted packets (replay), retrained links (recovery; on NVLink 5 the only "
            "type), checksum mismatches (crc).",
            lambda gpu: gpu.nvlink_errors,
            ("type",),
        ),
        Row(
            "rankskew_gpu_nvlink_link_errors_total",
            "Errors of all types on one NVLink that is up: only links with errors, and of a GPU's "
            "bad links only the two worst (as rankskew_gpu_nvlink_errors_total), read every 30 s.",
            lambda gpu: gpu.nvlink_link_errors,
            ("link",),
        ),
        Row(
            "rankskew_gpu_nvlink_link_up",
            "0 for an NVLink that is down; links that are up have no series, and of a GPU's bad "
            "links only the two worst (nvmlDeviceGetNvLinkState), read every 30 s.",
            lambda gpu: gpu.nvlink_link_states,
            ("link",),
        ),
        Row(
            "rankskew_gpu_nvlink_links_up",
            "NVLinks that are up (nvmlDeviceGetNvLinkState), read every 30 s.",
            lambda gpu: gpu.nvlink_links_up,
        ),
    ),
}
