"""A source of samples that never changes, and what Prometheus sees of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as RegistryCollector

from exporter.collectors.base import Collector
from exporter.nvml.sample import GpuSample, NodeSample, StuckCall


@dataclass(frozen=True)
class FixedNvml:
    """Always the same sample."""

    sample: NodeSample | None
    worker_up: bool = True
    worker_restarts: int = 0
    stuck_call: StuckCall | None = None
    released: bool = False

    def latest(self) -> NodeSample | None:
        return self.sample


# A node whose worker runs and has found no driver; and one whose worker was not heard yet.
NO_DRIVER = FixedNvml(NodeSample(1.0, gpus_visible=0))
NO_SAMPLE = FixedNvml(None, worker_up=False)


def node(*gpus: GpuSample) -> FixedNvml:
    """A node with *gpus*."""
    return FixedNvml(NodeSample(1.0, len(gpus), "999.1", "13.1", gpus))


def expose(*collectors: Collector) -> str:
    """Return the exposition of *collectors*."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(_Registered(collector))
    return generate_latest(registry).decode()


def series(text: str) -> list[str]:
    """Return the lines of an exposition that are series."""
    return [line for line in text.splitlines() if not line.startswith("#")]


class _Registered(RegistryCollector):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterable[Metric]:
        return self._collector.collect()
