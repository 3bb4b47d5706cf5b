"""Foreign is what is on a rank's GPU and not of its job; what belongs there is never counted."""

from typing import Any

import pytest

from exporter.cgroups import Cgroup
from exporter.nvml.sample import GpuSample
from exporter.processes.foreign import foreign_processes
from exporter.processes.process import Process
from exporter.processes.rank_gpus import join
from exporter.ranks.store import HeldRank
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.processes.test_rank_gpus import gpu
from tests.exporter.snapshots import snapshot

RANK = process(10, torchrun(0), ancestors=(5, 4))
CONTAINER = Cgroup(container_id="c" * 64)
SLURM = Cgroup(slurm_job_id="7")


def foreign(*processes: Process, sample: GpuSample | None = None) -> int | None:
    """Return the count on a GPU on which all of *processes* are."""
    sample = sample or gpu(0, *((each.pid, 1) for each in processes))
    seen = {each.pid: each for each in processes}
    return foreign_processes(sample, join([sample], seen, []), seen)


def test_gpu_without_a_rank_has_no_owner() -> None:
    """Where no job owns the GPU, nothing is foreign and nothing is not."""
    assert foreign() is None
    assert foreign(process(7, {}), process(8, None)) is None


def test_rank_alone_has_no_foreign_process() -> None:
    """A rank on its own GPU gives zero, not nothing."""
    assert foreign(RANK) == 0


@pytest.mark.parametrize(
    "other",
    [
        process(20, {}),
        process(20, None, uid=1001),
        process(20, torchrun(0, TORCHELASTIC_RUN_ID="other")),
        process(20, torchrun(1), uid=1001),
        process(20, {}, ancestors=(4_000,)),
        process(20, {}, cgroup=CONTAINER),
    ],
    ids=["plain", "unreadable", "other job", "same name, other user", "elsewhere", "container"],
)
def test_process_of_somebody_else_is_foreign(other: Process) -> None:
    """Neither by its environment nor by its place does it belong to the rank's job."""
    assert foreign(RANK, other) == 1


@pytest.mark.parametrize(
    ("rank", "other"),
    [
        (RANK, process(20, torchrun(1))),
        (RANK, process(20, {"TORCHELASTIC_RUN_ID": "llama"})),
        (RANK, process(20, {}, ancestors=(10, 5, 4))),
        (RANK, process(4, {})),
        (process(10, torchrun(0), cgroup=CONTAINER), process(20, None, cgroup=CONTAINER)),
        (process(10, torchrun(0), cgroup=SLURM), process(20, None, cgroup=SLURM)),
        (RANK, process(20, None, uid=0, name="nvidia-cuda-mps")),
        (RANK, process(20, None, uid=0, name="Xorg")),
    ],
    ids=["rank", "job", "child", "launcher", "container", "Slurm job", "MPS", "desktop"],
)
def test_process_of_the_job_or_the_node_is_not_foreign(rank: Process, other: Process) -> None:
    """Whatever one start of the job brings along, and the driver's own, is at home."""
    assert foreign(rank, other) == 0


def test_unnamed_jobs_are_not_one_job() -> None:
    """An unnamed run owns its ranks, but not every process without a job name."""
    rank = process(10, torchrun(0, TORCHELASTIC_RUN_ID="none"))

    assert foreign(rank, process(20, {})) == 1
    assert foreign(rank, process(20, torchrun(1, TORCHELASTIC_RUN_ID="none"))) == 0


def test_of_two_jobs_on_a_gpu_the_later_one_is_foreign() -> None:
    """A GPU given out twice shows it."""
    later = process(20, torchrun(0, TORCHELASTIC_RUN_ID="later"))

    assert foreign(later, RANK, process(11, torchrun(1))) == 1


def test_process_that_is_gone_is_not_counted() -> None:
    """A slightly old list makes no process foreign."""
    assert foreign(RANK, sample=gpu(0, (10, 1), (404, 1))) == 0


def probed(sample: GpuSample) -> Any:
    """A rank that its probe puts on GPU 0, and whose process cannot be seen."""
    held = HeldRank(snapshot(rank_info={"gpu_uuid": "GPU-0"}), 0.0)
    return foreign_processes(sample, join([sample], {}, [held]), {})


def test_where_no_process_can_be_seen_nothing_is_said() -> None:
    """Without the node's process ids the count is absent, not a comforting zero."""
    assert probed(gpu(0, (404, 1))) is None
    assert probed(gpu(0, processes=None)) is None
    assert probed(gpu(0)) == 0
