"""Processes on a GPU are counted, and so are those that do not belong to its rank's job."""

from exporter.collectors.gpu.processes import GpuProcessesCollector
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.store import RankStore
from tests.exporter.collectors.expose import shown
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.nvml.fixed import node


def test_foreign_processes_are_counted() -> None:
    """Each once, also on several MIG instances; without a rank none is foreign."""
    seen = {each.pid: each for each in (process(10, torchrun(0)), process(20, {}))}
    on_a = (GpuProcess(10, gpu_instance=1), GpuProcess(10, gpu_instance=2), GpuProcess(20))
    nvml = node(
        GpuSample(0, up=True, uuid="GPU-a", processes=(*on_a, GpuProcess(404))),
        GpuSample(1, up=True, uuid="GPU-b", processes=()),
        GpuSample(2, up=True, uuid="GPU-c", processes=(GpuProcess(20),)),
        GpuSample(3, up=False, uuid="GPU-lost"),
    )

    assert shown(GpuProcessesCollector(RankJoin(nvml, lambda: seen, RankStore()))) == [
        'rankskew_gpu_foreign_processes{gpu="0",gpu_uuid="GPU-a"} 1.0',
    ]
