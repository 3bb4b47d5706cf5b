"""GPU recovery: the action that the driver advises for an unhealthy GPU."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import gauge
from exporter.nvml.sample import NvmlSource


class GpuRecoveryCollector:
    """Expose NVML's recovery action; drivers before 570 have none."""

    name = "gpu_recovery"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        yield gauge(
            "rankskew_gpu_recovery_action",
            "Recovery action that the driver advises, by NVML's number: 0 nothing, 1 reset the "
            "GPU, 2 reboot the node, 3 drain its peer-to-peer traffic, 4 drain and reset, 5 "
            "recover the IMEX domain, 6 reset the bus, 7 reboot the system (field 230; read "
            "every 30 s).",
            self._nvml.latest(),
            lambda gpu: gpu.recovery_action,
        )
