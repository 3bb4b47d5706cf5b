"""MIG devices: the parts of a partitioned GPU, and the memory of each."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.readings import GPU_LABELS, labelled
from exporter.collectors.table import PERCENT, Row, families
from exporter.nvml.sample import MigDevice, NvmlSource

LABELS: Final = (*GPU_LABELS, "mig_uuid")
READINGS: Final[tuple[Row[MigDevice], ...]] = (
    Row(
        "rankskew_gpu_mig_memory_total_bytes",
        "Memory of the MIG device's GPU instance, in bytes (NVML, read about once a second).",
        lambda device: device.memory_total_bytes,
    ),
    Row(
        "rankskew_gpu_mig_memory_used_bytes",
        "Memory in use on the MIG device's GPU instance, in bytes (NVML, read about once a "
        "second).",
        lambda device: device.memory_used_bytes,
    ),
    Row(
        "rankskew_gpu_mig_sm_active_ratio",
        "Share of the SMs of the MIG device's GPU instance that were busy, 0 to 1: mean over "
        "the last --nvml.window seconds (GPM; Hopper and newer).",
        lambda device: device.sm_active_percent,
        over=PERCENT,
    ),
)


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
            labels=(*LABELS, "gpu_instance", "compute_instance", "profile"),
        )
        devices = [
            ((*who, device.uuid), device)
            for who, gpu in labelled(self._nvml.latest())
            for device in gpu.mig_devices or ()
        ]
        for who, device in devices:
            instances = str(device.gpu_instance), str(device.compute_instance)
            info.add_metric([*who, *instances, device.profile], 1)
        yield info
        yield from families(READINGS, LABELS, devices)
