"""The collector of GPU readings, and the labels that every series of a GPU has."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.readings import READINGS
from exporter.collectors.table import families
from exporter.nvml.sample import GpuSample, NodeSample, NvmlSource

GPU_LABELS: Final = ("gpu", "gpu_uuid")


class GpuReadingsCollector:
    """Expose the metrics that READINGS has for the collector *name*."""

    interval_seconds = 0.0

    def __init__(self, name: str, nvml: NvmlSource) -> None:
        self.name = name
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        yield from families(READINGS[self.name], GPU_LABELS, labelled(self._nvml.latest()))


def labelled(sample: NodeSample | None) -> list[tuple[tuple[str, str], GpuSample]]:
    """Return the values of GPU_LABELS for each GPU, with its sample; lost GPUs are included."""
    return [((str(gpu.index), gpu.uuid), gpu) for gpu in (() if sample is None else sample.gpus)]
