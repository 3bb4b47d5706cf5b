"""Foreign processes: those on a rank's GPU that do not belong to the rank's job."""

from collections.abc import Mapping, Sequence
from typing import Final

from exporter.nvml.sample import GpuSample
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankOnGpu, started_as
from rank_probe.process import identity

# Parts of the driver and of a desktop, by the 15 characters of a name that the kernel keeps: they
# run on every GPU, or compute for the job (the MPS server).
PART_OF_THE_NODE: Final = frozenset(
    {"nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine", "Xorg", "Xwayland", "gnome-shell"}
)


def foreign_processes(
    gpu: GpuSample, ranks: Sequence[RankOnGpu], processes: Mapping[int, Process]
) -> int | None:
    """Return how many foreign() processes there are; None if that is not known."""
    found = foreign(gpu, ranks, processes)
    return None if found is None else len(found)


def foreign(
    gpu: GpuSample, ranks: Sequence[RankOnGpu], processes: Mapping[int, Process]
) -> list[Process] | None:
    """Return the processes on *gpu* that do not belong to the job that owns it.

    None if no rank is on the GPU, because it then has no owner, if none of its processes is
    visible, or if it is divided: NVML lists those of all MIG instances together. If several jobs
    share it, the job that started first owns it, and the others' ranks are foreign. Processes that
    have ended since NVML listed them are left out.
    """
    owners = _owners(gpu, ranks)
    seen = [processes[each.pid] for each in gpu.processes or () if each.pid in processes]
    is_divided = gpu.mig_devices is not None
    if is_divided or not owners or gpu.processes is None or (gpu.processes and not seen):
        return None
    return [process for process in seen if not _belongs(process, owners)]


def _owners(gpu: GpuSample, ranks: Sequence[RankOnGpu]) -> list[RankOnGpu]:
    """Return the ranks on *gpu* that belong to the job that owns it."""
    here = [rank for rank in ranks if rank.gpu_uuid == gpu.uuid]
    if not here:
        return []
    first = min(here, key=_started_ticks)
    return [rank for rank in here if (rank.job_id, _user(rank)) == (first.job_id, _user(first))]


def _user(rank: RankOnGpu) -> int | None:
    return None if rank.process is None else rank.process.uid


def _started_ticks(rank: RankOnGpu) -> float:
    return float("inf") if rank.process is None else rank.process.start_ticks


def _belongs(process: Process, owners: Sequence[RankOnGpu]) -> bool:
    job_id = owners[0].job_id
    theirs = [rank.process for rank in owners if rank.process is not None]
    if process.name in PART_OF_THE_NODE or any(process.pid == each.pid for each in theirs):
        return True
    same_user = not theirs or process.uid in {each.uid for each in theirs}
    if same_user and _job_of(process) == job_id:
        return True
    return any(_is_beside(process, each) for each in theirs)


def _job_of(process: Process) -> str | None:
    """Return the job that the environment names; if it names none, only a rank has one."""
    environment = process.environment or {}
    is_rank = started_as(process) is not None
    return identity.job_id(environment) if is_rank else identity.named_job_id(environment)


def _is_beside(process: Process, owner: Process) -> bool:
    """Whether one is the other's ancestor, or both share a container or batch job."""
    ours, its = owner.cgroup, process.cgroup
    return (
        owner.pid in process.ancestors
        or process.pid in owner.ancestors
        or (ours.container_id == its.container_id != "")
        or (ours.slurm_job == its.slurm_job != "")
        or (ours.lsf_job == its.lsf_job != "")
    )
