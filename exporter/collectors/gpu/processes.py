"""GPU processes: how many on each GPU are foreign."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.collector import GPU_LABELS
from exporter.processes.foreign import foreign_processes
from exporter.processes.rank_gpus import RankJoin


class GpuProcessesCollector:
    """Count foreign processes; call from the event loop, as RankJoin requires."""

    name = "gpu_processes"
    interval_seconds = 0.0

    def __init__(self, join: RankJoin) -> None:
        self._join = join

    def collect(self) -> Iterator[Metric]:
        foreign = GaugeMetricFamily(
            "rankskew_gpu_foreign_processes",
            "Processes on the GPU that do not belong to the job of the rank on it: they do not "
            "have its environment, are not in its container or Slurm job, are neither its "
            "ancestors nor its descendants, and are not part of the driver or a desktop. Absent "
            "for a GPU without a rank, or if /proc shows none of the processes (NVML's process "
            "lists and /proc, read every 5 s).",
            labels=GPU_LABELS,
        )
        ranks, processes = self._join.ranks(), self._join.processes()
        for gpu in self._join.gpus():
            count = foreign_processes(gpu, ranks, processes)
            if count is not None:
                foreign.add_metric([str(gpu.index), gpu.uuid], count)
        yield foreign
