"""A plain torchrun beside GPUs that list its processes: ranks and job with no probe."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from devstack.load import samples_on
from devstack.parts import ExporterProcess
from devstack.process import StackProcess, get, wait_for
from tests import nvmlstub

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

RANKS, JOB = 4, "plain"
# Not in the order of the ranks, so that only the process ids can tell.
GPU_OF_RANK = {0: 2, 1: 3, 2: 1, 3: 0}


def torchrun(directory: Path) -> StackProcess:
    """Return torchrun of a script, which knows nothing of Rankskew."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", JOB]
    script = directory / "train.py"
    script.write_text("import time\ntime.sleep(600)\n")  # Only its processes are looked at.
    command += ["--log-dir", str(directory / "torchrun"), str(script)]
    environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "3,2,1,0"}
    return StackProcess("torchrun", command, directory / "torchrun.log", environment)


def started_by(agent: StackProcess) -> dict[int, int] | None:
    """Return the process id of each rank, once all are there."""
    children = psutil.Process(agent.pid).children()
    found = {int(each.environ().get("RANK", -1)): each.pid for each in children}
    return found if found.keys() == set(range(RANKS)) else None


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """What is shown once the ranks, and on rank 2's GPU a stranger, are found."""
    directory = tmp_path_factory.mktemp("plain")
    processes = directory / "processes"
    library = nvmlstub.build(directory)
    with ExitStack() as parts:
        training = parts.enter_context(torchrun(directory))
        stranger = parts.enter_context(
            StackProcess("a stranger", ["sleep", "300"], directory / "stranger.log")
        )
        with pytest.MonkeyPatch.context() as patch:
            for name, value in nvmlstub.environment(library, RANKS).items():
                patch.setenv(name, value)
            patch.setenv("STUB_PROCESSES", str(processes))
            exporter = ExporterProcess(directory, flags=["--series.detail=all"])
        pids = wait_for(lambda: started_by(training), 60)
        assert pids, training.last_lines()
        lines = [f"{GPU_OF_RANK[rank]} {pid} 9000" for rank, pid in pids.items()]
        # Rank 3 forgot to set its device at first, and left a context on GPU 2.
        lines += [f"2 {pids[3]} 500", f"{GPU_OF_RANK[2]} {stranger.pid} 70000"]
        processes.write_text("".join(f"{line}\n" for line in lines))
        parts.enter_context(exporter)

        def found() -> bytes | None:
            page = get(f"{exporter.url}/metrics")
            return page if len(list(samples_on(page, "rankskew_gpu_rank_info"))) == RANKS else None

        all_found = wait_for(found, 20, every=0.5)
        assert all_found, exporter.last_lines()
        yield all_found


def test_each_rank_of_the_job_is_on_its_gpu(shown: bytes) -> None:
    """Job, rank, local rank and GPU of every process are right, and each rank is there once.

    The readings of its GPU can be joined to each by the UUID. Of the processes' variables only
    those that are meant to be seen reach the page.
    """
    found = [labels for labels, _ in samples_on(shown, "rankskew_gpu_rank_info")]
    uuids = {labels["gpu_uuid"] for labels in found}

    assert {(labels["job_id"], labels["source"]) for labels in found} == {(JOB, "environ")}
    assert {int(labels["rank"]): int(labels["gpu"]) for labels in found} == GPU_OF_RANK
    assert all(labels["local_rank"] == labels["rank"] for labels in found)
    assert all(labels["visible_devices"] == "3,2,1,0" for labels in found)
    assert {labels["peer_group"] for labels in found} == {"NVIDIA Stub 80GB"}
    assert len(uuids) == RANKS
    for name in ("utilization_ratio", "memory_used_bytes", "power_watts"):
        readings = samples_on(shown, f"rankskew_gpu_{name}")
        assert uuids <= {labels["gpu_uuid"] for labels, _ in readings}
    assert os.environ["PATH"].encode() not in shown


def test_stranger_on_a_gpu_is_counted_and_nobody_else(shown: bytes) -> None:
    """A process that is not of the job is foreign, a second context of the job is not."""
    found = samples_on(shown, "rankskew_gpu_foreign_processes")
    foreign = {int(labels["gpu"]): number for labels, number in found}

    assert foreign == {0: 0, GPU_OF_RANK[2]: 1, 2: 0, 3: 0}
