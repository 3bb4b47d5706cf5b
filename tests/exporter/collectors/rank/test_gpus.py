"""A rank's GPU, CPUs, pod, Slurm job and visible devices are exposed without a probe in it."""

from typing import Any

import pytest

from exporter.cgroups import Cgroup
from exporter.collectors.rank.gpus import LEVELS, RankGpusCollector, longest_way
from exporter.nvml.readings import placement
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin, numa_local
from exporter.ranks.store import RankStore
from tests.exporter.collectors.expose import expose, series
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.nvml.fixed import FixedNvml, node

POD_UID, CONTAINER = "12345678-9abc-def0-1234-56789abcdef0", "c" * 64
WHO = 'job_id="llama",peer_group="all",rank="0"'


def gpu(index: int, *pids: int, **fields: Any) -> GpuSample:
    listed = tuple(GpuProcess(pid, 1) for pid in pids)
    return GpuSample(index, up=True, uuid=f"GPU-{index}", processes=listed, **fields)


def page(nvml: FixedNvml, *processes: Process) -> str:
    seen = {each.pid: each for each in processes}
    return expose(RankGpusCollector(RankJoin(nvml, lambda: seen, RankStore())))


def of_rank_0(name: str, **fields: Any) -> list[str]:
    """Return the series *name* of rank 0, a process with *fields*, on GPU 0."""
    fields = {"environment": torchrun(0), **fields}
    text = page(node(gpu(0, 10)), process(10, **fields))
    return [line for line in series(text) if line.startswith(name)]


def test_rank_is_joined_to_its_gpu() -> None:
    """Index and UUID, job, peers, rank, local rank and how it is known are on one series."""
    assert of_rank_0("rankskew_gpu_rank_info") == [
        'rankskew_gpu_rank_info{device_order="",gpu="0",gpu_uuid="GPU-0",job_id="llama",'
        'local_rank="0",peer_group="all",rank="0",source="environ",visible_devices=""} 1.0'
    ]


@pytest.mark.parametrize(
    ("variables", "visible", "order"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3,1", "NVIDIA_VISIBLE_DEVICES": "all"}, "3,1", ""),
        ({"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "all"}, "", ""),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "all", "PCI_BUS_ID"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-0a1b2c3d-x"}, "MIG-0a1b2c3d-x", ""),
        (
            {
                "CUDA_VISIBLE_DEVICES": ",".join(
                    f"GPU-{index}a1b2c3d-0000-1111-2222-333344445555" for index in range(8)
                )
            },
            ",".join(f"GPU-{index}a1b2c3d" for index in range(8)),
            "",
        ),
    ],
)
def test_devices_that_the_rank_sees_are_told_in_order(
    variables: dict[str, str], visible: str, order: str
) -> None:
    """A rank that sees its GPUs in another order than its peers is visible; UUIDs are shortened."""
    (line,) = of_rank_0("rankskew_gpu_rank_info", environment=torchrun(0, **variables))

    assert f'visible_devices="{visible}"' in line
    assert f'device_order="{order}"' in line


@pytest.mark.parametrize(
    ("cpus", "local", "share"),
    [
        ({0, 1}, (0, 1), 1.0),
        ({0, 1}, (1, 2, 3), 0.5),
        ({0, 1}, (2, 3), 0.0),
        (set(range(4)), (0,), 0.25),
    ],
)
def test_numa_locality_is_the_share_of_the_ranks_cpus(
    cpus: set[int], local: tuple[int, ...], share: float
) -> None:
    """Bound next to its GPU is 1, bound elsewhere 0, not bound at all something in between."""
    sample = gpu(0, 10, numa_node=0, cpu_affinity=local)
    text = page(node(sample), process(10, torchrun(0), cpus=frozenset(cpus)))

    assert f"rankskew_rank_numa_local{{{WHO}}} {share}" in series(text)


@pytest.mark.parametrize(
    ("sample", "cpus"),
    [
        (None, {0}),
        (gpu(0), {0}),
        (gpu(0, cpu_affinity=(0, 1)), {0}),
        (gpu(0, numa_node=0), {0}),
        (gpu(0, numa_node=0, cpu_affinity=(0, 1)), None),
    ],
    ids=["no GPU", "nothing", "no node", "no CPUs", "no affinity"],
)
def test_locality_that_is_not_known_is_absent(
    sample: GpuSample | None, cpus: set[int] | None
) -> None:
    """A virtual machine that hides its NUMA nodes is not called local."""
    assert numa_local(sample, process(10, cpus=cpus and frozenset(cpus))) is None
    assert numa_local(sample, None) is None


def test_rank_outside_of_a_cluster_has_neither_pod_nor_job() -> None:
    """A torchrun on a bare node has no such series."""
    assert of_rank_0("rankskew_rank_slurm_info") == of_rank_0("rankskew_rank_pod_info") == []


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
        "rankskew_rank_pod_info",
        environment=torchrun(0, **variables),
        has_own_hostname=own_hostname,
        cgroup=Cgroup(pod_uid=POD_UID, container_id=CONTAINER),
    ) == [
        f'rankskew_rank_pod_info{{container_id="{CONTAINER}",job_id="llama",namespace="{namespace}"'
        f',peer_group="all",pod="{pod}",pod_uid="{POD_UID}",rank="0"}} 1.0'
    ]


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_USER": "ada"}


@pytest.mark.parametrize(
    ("cgroup", "job", "step"),
    [(Cgroup(), "7", "2"), (Cgroup(slurm_job_id="8", slurm_step_id="0"), "8", "0")],
    ids=["environment", "cgroup"],
)
def test_slurm_job_is_told(cgroup: Cgroup, job: str, step: str) -> None:
    """The cgroup, which Slurm made, is believed before the environment."""
    environment = torchrun(0, **SLURM, SLURM_STEP_ID="2", RANKSKEW_JOB_ID="llama")

    assert of_rank_0("rankskew_rank_slurm_info", environment=environment, cgroup=cgroup) == [
        f'rankskew_rank_slurm_info{{job_id="llama",partition="gpu",peer_group="all",rank="0",'
        f'slurm_job_id="{job}",slurm_step_id="{step}",user="ada"}} 1.0'
    ]


def test_slurm_inside_of_a_pod_is_slurms() -> None:
    """A rank has one of the two series, so that it stays within its budget."""
    environment = torchrun(0, **SLURM)
    pod = Cgroup(pod_uid=POD_UID)

    assert of_rank_0("rankskew_rank_pod_info", environment=environment, cgroup=pod) == []
    assert len(of_rank_0("rankskew_rank_slurm_info", environment=environment, cgroup=pod)) == 1


def test_levels_are_the_workers() -> None:
    """From near to far, as NVML's own numbers are ordered."""
    assert tuple(name for _, name in sorted(placement.LEVELS.items())) == LEVELS


def test_topology_of_a_job_is_its_longest_way() -> None:
    """One series for each job, with the farthest level between two of its GPUs."""
    nvml = node(
        gpu(0, 10, topology={"1": "single", "2": "node", "3": "system"}),
        gpu(1, 11, topology={"0": "single", "2": "node", "3": "system"}),
        gpu(2, 12, topology={"0": "node", "1": "node", "3": "system"}),
        gpu(3, 20, topology={"0": "system", "1": "system", "2": "system"}),
    )
    other = process(20, torchrun(0, TORCHELASTIC_RUN_ID="alone"))
    text = page(nvml, *(process(10 + rank, torchrun(rank)) for rank in range(3)), other)

    assert [line for line in series(text) if "topology" in line] == [
        'rankskew_job_gpu_topology_info{job_id="llama",level="node"} 1.0'
    ]


def test_topology_that_is_not_wholly_known_is_absent() -> None:
    """A pair that was not measured could be the farthest; an unknown level counts as none."""
    two = [gpu(0, topology={"1": "node"}), gpu(1)]

    assert longest_way(two) == "node"
    assert longest_way([gpu(0, topology={"1": "node", "2": "single"}), gpu(1), gpu(2)]) is None
    assert longest_way([*two, gpu(2)]) is None
    assert longest_way([gpu(0, topology={"1": "astral"}), gpu(1)]) is None
    assert longest_way([gpu(0)]) is None
