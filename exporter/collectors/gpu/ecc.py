"""GPU ECC: memory errors that the GPU's error correction detected."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import GPU_LABELS, per_gpu
from exporter.nvml.sample import NvmlSource


class GpuEccCollector:
    """Expose ECC errors over the GPU's life. A GPU without ECC, or with ECC off, has no series."""

    name = "gpu_ecc"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        errors = CounterMetricFamily(
            "rankskew_gpu_ecc_errors_total",
            "ECC errors in all of the GPU's memories over its life, corrected or uncorrected "
            "(nvmlDeviceGetTotalEccErrors, aggregate; read every 30 s).",
            labels=(*GPU_LABELS, "type"),
        )
        per_gpu(errors, sample, lambda gpu: gpu.ecc_corrected_errors, "corrected")
        per_gpu(errors, sample, lambda gpu: gpu.ecc_uncorrected_errors, "uncorrected")
        yield errors
