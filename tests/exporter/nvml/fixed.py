"""A source of samples that change only when a test says so."""

from dataclasses import dataclass

from exporter.nvml.sample import GpuSample, NodeSample, StuckCall


@dataclass
class FixedNvml:
    """The same sample until a test sets another."""

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
