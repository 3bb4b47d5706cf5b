"""The NVLinks of each GPU: traffic, errors, how many are up and which are not, their speed."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import GPU_LABELS, Family, counter, gauge, scaled
from exporter.nvml.sample import NodeSample, NvmlSource


class GpuNvlinkCollector:
    """Expose all links of a GPU together, and its two worst; a GPU without NVLink has no series."""

    name = "gpu_nvlink"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        yield from _throughput(sample)
        yield _errors(sample)
        yield from _bad_links(sample)
        yield from _links(sample)


def _throughput(sample: NodeSample | None) -> Iterator[Metric]:
    yield counter(
        "rankskew_gpu_nvlink_transmit_bytes_total",
        "Bytes from the GPU over all its NVLinks, without protocol overhead if the driver counts "
        "it separately (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX; on NVLink 5 "
        "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES), read every 5 s.",
        sample,
        lambda gpu: gpu.nvlink_transmit_bytes,
    )
    yield counter(
        "rankskew_gpu_nvlink_receive_bytes_total",
        "Bytes to the GPU over all its NVLinks (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX; on NVLink 5 "
        "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES), read every 5 s.",
        sample,
        lambda gpu: gpu.nvlink_receive_bytes,
    )


def _errors(sample: NodeSample | None) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "rankskew_gpu_nvlink_errors_total",
        "Errors on all of the GPU's NVLinks (NVML_FI_DEV_NVLINK_ERROR_DL_*), read every 30 s: "
        "retransmitted packets (replay), retrained links (recovery; on NVLink 5 the only type), "
        "checksum mismatches (crc).",
        labels=(*GPU_LABELS, "type"),
    )
    for gpu in () if sample is None else sample.gpus:
        for kind, errors in (gpu.nvlink_errors or {}).items():
            family.add_metric([str(gpu.index), gpu.uuid, kind], errors)
    return family


def _bad_links(sample: NodeSample | None) -> Iterator[Metric]:
    errors = CounterMetricFamily(
        "rankskew_gpu_nvlink_link_errors_total",
        "Errors of all types on one NVLink that is up: only links with errors, and of a GPU's bad "
        "links only the two worst (as rankskew_gpu_nvlink_errors_total), read every 30 s.",
        labels=(*GPU_LABELS, "link"),
    )
    up = GaugeMetricFamily(
        "rankskew_gpu_nvlink_link_up",
        "0 for an NVLink that is down; links that are up have no series, and of a GPU's bad links "
        "only the two worst (nvmlDeviceGetNvLinkState), read every 30 s.",
        labels=(*GPU_LABELS, "link"),
    )
    yield _by_link(errors, sample, "nvlink_link_errors")
    yield _by_link(up, sample, "nvlink_link_states")


def _by_link(family: Family, sample: NodeSample | None, field: str) -> Family:
    for gpu in () if sample is None else sample.gpus:
        for link, value in (getattr(gpu, field) or {}).items():
            family.add_metric([str(gpu.index), gpu.uuid, link], value)
    return family


def _links(sample: NodeSample | None) -> Iterator[Metric]:
    yield gauge(
        "rankskew_gpu_nvlink_links",
        "NVLinks that the GPU has, connected or not (those that have an nvmlDeviceGetNvLinkState).",
        sample,
        lambda gpu: gpu.nvlink_links,
    )
    yield gauge(
        "rankskew_gpu_nvlink_links_up",
        "NVLinks that are up (nvmlDeviceGetNvLinkState), read every 30 s.",
        sample,
        lambda gpu: gpu.nvlink_links_up,
    )
    yield gauge(
        "rankskew_gpu_nvlink_speed_min_bytes_per_second",
        "Speed in each direction of the slowest NVLink that is up "
        "(NVML_FI_DEV_NVLINK_GET_SPEED), read every 30 s.",
        sample,
        lambda gpu: scaled(gpu.nvlink_speed_min_megabytes_per_second, times=1_000_000),
    )
