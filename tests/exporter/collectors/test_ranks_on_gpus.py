"""A rank's GPU, place and cost to its host are exposed without a probe in it."""

from pathlib import Path
from typing import Any

import pytest

from exporter.cgroups import Cgroup
from exporter.collectors.rank.gpus import RankGpusCollector
from exporter.collectors.rank.host import RankHostCollector
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes import rank_cost
from exporter.processes.host_watch import HostWatch
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin, numa_local
from exporter.ranks.store import RankStore
from tests.exporter.collectors.expose import expose, shown
from tests.exporter.collectors.host import write
from tests.exporter.fake_proc import FakeProc, process, torchrun
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


class Host:
    """A node on whose GPU rank 0 runs as process 10, with a worker."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeProc(folder / "proc")
        self.sysfs = folder / "sys"
        self.watch = HostWatch(self.fake.path, self.sysfs)
        rank = process(10, torchrun(0), start_ticks=1000)
        gpu = GpuSample(0, up=True, uuid="GPU-0", processes=(GpuProcess(10),))
        self.join = RankJoin(node(gpu), lambda: {10: rank}, RankStore())
        self.collector = RankHostCollector(self.join, RankStore(), self.watch)

    def look(self) -> None:
        """Let a scrape name the ranks, and look at them."""
        expose(self.collector)
        self.watch.look()

    def series(self) -> list[str]:
        return [line.removeprefix("rankskew_rank_") for line in shown(self.collector)]

    def complete(self) -> None:
        """Show all that there is of rank 0 and its worker."""
        self.fake.use(10, cpu=150, faults=3, read=4096, run_queue=10**9)
        self.fake.use(11, parent=10, cpu=900, read=4096, run_queue=3 * 10**9)
        write(self.fake.path / "10" / "cgroup", "0::/pod\n")
        cgroup = self.sysfs / "fs" / "cgroup" / "pod"
        write(cgroup / "cpu.max", "100000 100000\n")
        write(cgroup / "cpu.stat", "nr_periods 100\nnr_throttled 25\nthrottled_usec 2500000\n")
        for number, resource in enumerate(("cpu", "io", "memory"), 1):
            write(cgroup / f"{resource}.pressure", f"some avg10=0.00 total={number}000000\n")
        self.look()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def split(name: str, main: float, workers: float) -> list[str]:
    labels = 'job_id="llama",peer_group="all",process="{}",rank="0"'
    values = {"main": main, "workers": workers}
    return [f"{name}{{{labels.format(of)}}} {value}" for of, value in values.items()]


def test_rank_whose_process_cannot_be_read_has_no_series(host: Host) -> None:
    """An exporter in another process namespace shows no zeros."""
    host.look()

    assert host.series() == ["processes_left_out 0.0"]


def test_readings_that_the_node_refuses_have_no_series(host: Host) -> None:
    """No rights for io, no schedstat, no cgroups: what there is stays."""
    host.fake.use(10, cpu=150, faults=3)
    host.look()

    assert host.series() == [
        *split("cpu_seconds_total", 1.5, 0.0),
        f"workers{{{WHO}}} 0.0",
        "processes_left_out 0.0",
    ]


def test_all_that_is_read_is_exposed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """In base units; CPU and run queue of the workers apart, everything else as a sum."""
    monkeypatch.setattr(rank_cost, "SATURATED_SECONDS", 0.0)
    host.complete()
    host.look()

    assert host.series() == [
        *split("cpu_seconds_total", 1.5, 9.0),
        *split("run_queue_seconds_total", 1.0, 3.0),
        f"read_bytes_total{{{WHO}}} 8192.0",
        f"workers{{{WHO}}} 1.0",
        f"cgroup_throttled_periods_total{{{WHO}}} 25.0",
        f'cgroup_pressure_seconds_total{{{WHO},resource="cpu"}} 1.0',
        f'cgroup_pressure_seconds_total{{{WHO},resource="io"}} 2.0',
        f'cgroup_pressure_seconds_total{{{WHO},resource="memory"}} 3.0',
        "processes_left_out 0.0",
    ]


def test_rank_that_has_ended_since_the_look_has_no_series(host: Host) -> None:
    """Its last numbers are not shown until the next look."""
    host.complete()
    host.join.processes = dict

    assert host.series() == ["processes_left_out 0.0"]


def test_scrape_reads_no_file(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape tells the watch who is there, and shows what that found."""
    host.complete()
    page = expose(host.collector)
    for call in ("os.open", "os.listdir", "pathlib.Path.open"):
        monkeypatch.setattr(call, None)

    assert expose(host.collector) == page
