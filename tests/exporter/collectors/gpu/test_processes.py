"""Processes on a GPU are counted, and so are those that do not belong to its rank's job."""

from exporter.collectors.gpu.processes import GpuProcessesCollector
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.store import RankStore
from tests.exporter.collectors.expose import expose, series
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.nvml.fixed import FixedNvml, node


def page(nvml: FixedNvml) -> list[str]:
    """What is shown where processes 10, a rank, and 20, somebody's, run."""
    seen = {each.pid: each for each in (process(10, torchrun(0)), process(20, {}))}
    return series(expose(GpuProcessesCollector(RankJoin(nvml, lambda: seen, RankStore()))))


def test_processes_are_counted() -> None:
    """All processes are counted, and the foreign ones; idle is 0, no rank means no foreign ones."""
    both = (GpuProcess(10), GpuProcess(20), GpuProcess(404))
    nvml = node(
        GpuSample(0, up=True, uuid="GPU-a", processes=both),
        GpuSample(1, up=True, uuid="GPU-b", processes=()),
        GpuSample(2, up=True, uuid="GPU-c", processes=(GpuProcess(20),)),
        GpuSample(3, up=False, uuid="GPU-lost"),
    )

    assert page(nvml) == [
        'rankskew_gpu_processes{gpu="0",gpu_uuid="GPU-a"} 3.0',
        'rankskew_gpu_processes{gpu="1",gpu_uuid="GPU-b"} 0.0',
        'rankskew_gpu_processes{gpu="2",gpu_uuid="GPU-c"} 1.0',
        'rankskew_gpu_foreign_processes{gpu="0",gpu_uuid="GPU-a"} 1.0',
    ]


def test_process_on_several_instances_of_a_gpu_is_one() -> None:
    """A process that MIG lists twice is counted once."""
    twice = (GpuProcess(10, gpu_instance=1), GpuProcess(10, gpu_instance=2))

    assert 'rankskew_gpu_processes{gpu="0",gpu_uuid=""} 1.0' in page(
        node(GpuSample(0, up=True, processes=twice))
    )
