"""MIG devices: the parts of a partitioned GPU, and the memory of each."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import GPU_LABELS
from exporter.nvml.sample import NvmlSource

LABELS: Final = (*GPU_LABELS, "mig_uuid")
IDENTITY: Final = (*LABELS, "gpu_instance", "compute_instance", "profile")


class GpuMigCollector:
    """Expose the MIG devices of each GPU; no series where MIG is off.

    With MIG on, NVML has no utilization for the GPU or its devices; GPM has their activity.
    """

    name = "gpu_mig"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "rankskew_gpu_mig_info",
            "A MIG device of the GPU, with its instance IDs and its profile, as NVML names them; "
            "always 1.",
            labels=IDENTITY,
        )
        total = GaugeMetricFamily(
            "rankskew_gpu_mig_memory_total_bytes",
            "Memory of the MIG device's GPU instance, in bytes (NVML, read about once a second).",
            labels=LABELS,
        )
        used = GaugeMetricFamily(
            "rankskew_gpu_mig_memory_used_bytes",
            "Memory in use on the MIG device's GPU instance, in bytes (NVML, read about once a "
            "second).",
            labels=LABELS,
        )
        active = GaugeMetricFamily(
            "rankskew_gpu_mig_sm_active_ratio",
            "Share of the SMs of the MIG device's GPU instance that were busy, 0 to 1: mean over "
            "the last --nvml.window seconds (GPM; Hopper and newer).",
            labels=LABELS,
        )
        sample = self._nvml.latest()
        for gpu in () if sample is None else sample.gpus:
            for device in gpu.mig_devices or ():
                labels = [str(gpu.index), gpu.uuid, device.uuid]
                instances = [str(device.gpu_instance), str(device.compute_instance)]
                info.add_metric([*labels, *instances, device.profile], 1)
                if device.memory_total_bytes is not None:
                    total.add_metric(labels, device.memory_total_bytes)
                if device.memory_used_bytes is not None:
                    used.add_metric(labels, device.memory_used_bytes)
                if device.sm_active_percent is not None:
                    active.add_metric(labels, device.sm_active_percent / 100)
        yield info
        yield total
        yield used
        yield active
