"""Which GPUs this node has, which of them answer, and how the process that asks them is doing."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.nvml.families import GPU_LABELS, gauge
from exporter.nvml.sample import NodeSample, NvmlSource


class GpuDevicesCollector:
    """Expose the node's GPUs, the driver, and the NVML worker that the exporter supervises."""

    name = "gpu_devices"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        yield from _gpus(sample)
        yield from _driver(sample)
        yield GaugeMetricFamily(
            "rankskew_nvml_worker_up",
            "1 if the process that reads the GPUs is running and was heard in the last seconds.",
            value=float(self._nvml.worker_up),
        )
        yield CounterMetricFamily(
            "rankskew_nvml_worker_restarts_total",
            "Times the process that reads the GPUs was replaced: it crashed, or the driver hung.",
            value=self._nvml.worker_restarts,
        )


def _gpus(sample: NodeSample | None) -> Iterator[Metric]:
    visible = GaugeMetricFamily(
        "rankskew_gpus_visible",
        "GPUs that the driver lists, lost ones included; 0 on a node without GPU or driver.",
    )
    if sample is not None and sample.gpus_visible is not None:
        visible.add_metric([], sample.gpus_visible)
    yield visible
    yield gauge(
        "rankskew_gpu_up",
        "1 if the GPU answers, 0 if it is lost, needs a reset, or hangs in the driver.",
        sample,
        lambda gpu: float(gpu.up),
    )
    info = GaugeMetricFamily(
        "rankskew_gpu_info",
        "The GPU's model and its place on the PCI bus; always 1.",
        labels=(*GPU_LABELS, "name", "pci_bus_id"),
    )
    for gpu in () if sample is None else sample.gpus:
        if gpu.up:
            info.add_metric([str(gpu.index), gpu.uuid, gpu.name, gpu.pci_bus_id], 1)
    yield info


def _driver(sample: NodeSample | None) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "rankskew_nvml_info",
        "Versions of the NVIDIA driver and of its NVML library; always 1.",
        labels=["driver_version", "nvml_version"],
    )
    timestamp = GaugeMetricFamily(
        "rankskew_nvml_sample_timestamp_seconds",
        "When the GPUs were last read, as Unix time; they are read about once a second.",
    )
    if sample is not None:
        timestamp.add_metric([], sample.timestamp_seconds)
        if sample.driver_version is not None and sample.nvml_version is not None:
            info.add_metric([sample.driver_version, sample.nvml_version], 1)
    yield info
    yield timestamp
