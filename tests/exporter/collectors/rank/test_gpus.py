"""A rank's GPU, CPUs, pod, Slurm job and visible devices are exposed without a probe in it."""

from typing import Any

import pytest

from exporter.cgroups import Cgroup
from exporter.collectors.rank.gpus import RankGpusCollector
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin, numa_local
from exporter.ranks.store import RankStore
from tests.exporter.collectors.expose import shown
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.nvml.fixed import FixedNvml, node

POD_UID, CONTAINER = "12345678-9abc-def0-1234-56789abcdef0", "c" * 64
WHO = 'job_id="llama",peer_group="all",rank="0"'


def gpu(index: int, *pids: int, **fields: Any) -> GpuSample:
    listed = tuple(GpuProcess(pid, 1) for pid in pids)
    return GpuSample(index, up=True, uuid=f"GPU-{index}", processes=listed, **fields)


def page(nvml: FixedNvml, *processes: Process, name: str = "") -> list[str]:
    seen = {each.pid: each for each in processes}
    collector = RankGpusCollector(RankJoin(nvml, lambda: seen, RankStore()))
    return [line.removeprefix("rankskew_") for line in shown(collector, f"rankskew_{name}")]


def of_rank_0(name: str, on: GpuSample | None = None, **fields: Any) -> list[str]:
    """Return the series *name* of rank 0, a process with *fields*, on GPU 0."""
    fields = {"environment": torchrun(0), **fields}
    return page(node(on or gpu(0, 10)), process(10, **fields), name=name)


def test_rank_is_joined_to_its_gpu() -> None:
    """On a bare node it has neither a pod nor a Slurm job, and no locality that is not known."""
    assert of_rank_0("") == [
        'gpu_rank_info{device_order="",gpu="0",gpu_uuid="GPU-0",job_id="llama",'
        'local_rank="0",peer_group="all",rank="0",source="environ",visible_devices=""} 1.0'
    ]


EIGHT = [f"GPU-{index}a1b2c3d" for index in range(8)]


@pytest.mark.parametrize(
    ("variables", "visible", "order"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3,1", "NVIDIA_VISIBLE_DEVICES": "all"}, "3,1", ""),
        ({"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "all"}, "", ""),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "all", "PCI_BUS_ID"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-0a1b2c3d-x"}, "MIG-0a1b2c3d-x", ""),
        (
            {"CUDA_VISIBLE_DEVICES": ",".join(f"{u}-0000-1111-2222-333344445555" for u in EIGHT)},
            ",".join(EIGHT),
            "",
        ),
    ],
)
def test_devices_that_the_rank_sees_are_told_in_order(
    variables: dict[str, str], visible: str, order: str
) -> None:
    """A rank that sees its GPUs in another order than its peers is visible; UUIDs are shortened."""
    (line,) = of_rank_0("gpu_rank_info", environment=torchrun(0, **variables))

    assert f'visible_devices="{visible}"' in line
    assert f'device_order="{order}"' in line


@pytest.mark.parametrize(
    ("cpus", "near", "share"),
    [
        # Bound next to its GPU is 1, bound elsewhere 0, not bound at all something in between.
        ({0, 1}, {"numa_node": 0, "cpu_affinity": (0, 1)}, 1.0),
        ({0, 1}, {"numa_node": 0, "cpu_affinity": (1, 2, 3)}, 0.5),
        ({0, 1}, {"numa_node": 0, "cpu_affinity": (2, 3)}, 0.0),
        (set(range(4)), {"numa_node": 0, "cpu_affinity": (0,)}, 0.25),
        # A virtual machine that hides its NUMA nodes is not called local.
        ({0}, {"cpu_affinity": (0, 1)}, None),
        ({0}, {"numa_node": 0}, None),
        (None, {"numa_node": 0, "cpu_affinity": (0, 1)}, None),
    ],
)
def test_numa_locality_is_the_share_of_the_ranks_cpus(
    cpus: set[int] | None, near: dict[str, Any], share: float | None
) -> None:
    lines = of_rank_0("rank_numa_local", gpu(0, 10, **near), cpus=cpus and frozenset(cpus))

    assert lines == ([] if share is None else [f"rank_numa_local{{{WHO}}} {share}"])
    assert numa_local(None, process(10)) is numa_local(gpu(0, **near), None) is None


@pytest.mark.parametrize(
    ("variables", "own_hostname", "namespace", "pod"),
    [
        ({"POD_NAME": "p", "POD_NAMESPACE": "n", "HOSTNAME": "h"}, True, "n", "p"),
        ({"HOSTNAME": "llama-0"}, True, "", "llama-0"),
        ({"HOSTNAME": "node-7"}, False, "", ""),
        ({"HOSTNAME": "node-7"}, None, "", ""),
    ],
    ids=["downward API", "host name", "host network", "not readable"],
)
def test_pod_is_told(
    variables: dict[str, str], own_hostname: bool | None, namespace: str, pod: str
) -> None:
    """The cgroup identifies pod and container, the environment names them; a node is no pod."""
    assert of_rank_0(
        "rank_pod_info",
        environment=torchrun(0, **variables),
        has_own_hostname=own_hostname,
        cgroup=Cgroup(pod_uid=POD_UID, container_id=CONTAINER),
    ) == [
        f'rank_pod_info{{container_id="{CONTAINER}",job_id="llama",namespace="{namespace}"'
        f',peer_group="all",pod="{pod}",pod_uid="{POD_UID}",rank="0"}} 1.0'
    ]


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_USER": "ada"}


@pytest.mark.parametrize(
    ("cgroup", "job", "step"),
    [
        (Cgroup(), "7", "2"),
        (Cgroup(slurm_job_id="8", slurm_step_id="0"), "8", "0"),
        (Cgroup(pod_uid=POD_UID), "7", "2"),
    ],
    ids=["environment", "cgroup", "inside of a pod"],
)
def test_slurm_job_is_told(cgroup: Cgroup, job: str, step: str) -> None:
    """The cgroup, which Slurm made, is believed before the environment.

    A rank has a pod or a Slurm job, so that it stays within its budget.
    """
    environment = torchrun(0, **SLURM, SLURM_STEP_ID="2", RANKSKEW_JOB_ID="llama")

    assert of_rank_0("rank_", environment=environment, cgroup=cgroup) == [
        f'rank_slurm_info{{job_id="llama",partition="gpu",peer_group="all",rank="0",'
        f'slurm_job_id="{job}",slurm_step_id="{step}",user="ada"}} 1.0'
    ]
