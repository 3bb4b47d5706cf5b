"""XID errors: what the driver reports when a GPU, or a program on it, has failed."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import GPU_LABELS, counter
from exporter.nvml.sample import NvmlSource


class GpuXidCollector:
    """Expose how many XID errors each GPU reported, and which; lost GPUs are included."""

    name = "gpu_xid"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        yield counter(
            "rankskew_gpu_xid_events_total",
            "XID errors of the GPU, of every kind, since the process that reads the GPUs "
            "started: from /dev/kmsg if the exporter may read it, else from NVML's events, which "
            "lack some kinds. A lost GPU keeps this series.",
            sample,
            lambda gpu: gpu.xid_events,
        )
        errors = CounterMetricFamily(
            "rankskew_gpu_xid_errors_total",
            "XID errors of the GPU by number, counted like rankskew_gpu_xid_events_total: at "
            "most 3 kinds, at most one of them caused by programs (13, 31, 43, 45, 68, 109); all "
            "others are only in rankskew_gpu_xid_events_total.",
            labels=(*GPU_LABELS, "xid"),
        )
        for gpu in () if sample is None else sample.gpus:
            for xid, count in (gpu.xid_errors or {}).items():
                errors.add_metric([str(gpu.index), gpu.uuid, xid], count)
        yield errors
