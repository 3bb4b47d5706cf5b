"""Remapped rows: rows of a GPU's memory that failed and were replaced by spare ones."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import GPU_LABELS, gauge, per_gpu
from exporter.nvml.sample import NvmlSource


class GpuRemappedRowsCollector:
    """Expose remapped and pending rows. GPUs before Ampere have none."""

    name = "gpu_remapped_rows"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        rows = CounterMetricFamily(
            "rankskew_gpu_remapped_rows_total",
            "Rows of the GPU's memory that were replaced over its life, by the type of error "
            "that caused it (nvmlDeviceGetRemappedRows; read every 30 s).",
            labels=(*GPU_LABELS, "type"),
        )
        per_gpu(rows, sample, lambda gpu: gpu.remapped_rows_corrected, "corrected")
        per_gpu(rows, sample, lambda gpu: gpu.remapped_rows_uncorrected, "uncorrected")
        yield rows
        yield gauge(
            "rankskew_gpu_row_remap_pending",
            "1 if a row will be replaced at the GPU's next reset (nvmlDeviceGetRemappedRows).",
            sample,
            lambda gpu: gpu.row_remap_pending,
        )
        yield gauge(
            "rankskew_gpu_row_remap_failed",
            "1 if a row could not be replaced, for example because no spare row was left: the "
            "GPU must be replaced (nvmlDeviceGetRemappedRows).",
            sample,
            lambda gpu: gpu.row_remap_failed,
        )
