"""Metric families with a series per GPU: their common labels, and how they are filled."""

from collections.abc import Callable
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from exporter.nvml.sample import GpuSample, NodeSample

GPU_LABELS: Final = ("gpu", "gpu_uuid")

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)
Reading = Callable[[GpuSample], float | None]


def gauge(name: str, help: str, sample: NodeSample | None, value: Reading) -> GaugeMetricFamily:
    """Return a gauge with the *value* of each GPU that has one."""
    return per_gpu(GaugeMetricFamily(name, help, labels=GPU_LABELS), sample, value)


def counter(name: str, help: str, sample: NodeSample | None, value: Reading) -> CounterMetricFamily:
    """Return a counter with the *value* of each GPU that has one; *name* ends in _total."""
    return per_gpu(CounterMetricFamily(name, help, labels=GPU_LABELS), sample, value)


def per_gpu(
    family: Family,
    sample: NodeSample | None,
    value: Reading,
    *labels: str,
) -> Family:
    """Add the *value* of each GPU to *family* and return it; no reading, no series.

    *labels* are the values of the family's labels after GPU_LABELS.
    """
    for gpu in () if sample is None else sample.gpus:
        reading = value(gpu)
        if reading is not None:
            family.add_metric([str(gpu.index), gpu.uuid, *labels], reading)
    return family


def scaled(value: float | None, times: int = 1, over: int = 1) -> float | None:
    """Return *value* in another unit; None stays None."""
    return None if value is None else value * times / over
