"""Which GPUs a node has, edges of their readings, and their faults, told to each rank on them.

Pages of whole nodes are golden files.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest

from exporter.cgroups import Cgroup
from exporter.collectors.gpu.devices import GpuDevicesCollector
from exporter.collectors.gpu.faults import MOST_REMEMBERED, GpuFaultsCollector, Tenants
from exporter.collectors.gpu.readings import GpuReadingsCollector
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import (
    GpuProcess,
    GpuSample,
    MigDevice,
    NodeSample,
    NoGpuReason,
    NvmlSource,
    StuckCall,
)
from exporter.processes.background import WatchHangs
from exporter.processes.process import Proc
from exporter.processes.rank_gpus import RankJoin, RankOnGpu
from exporter.processes.watch import ProcessWatch
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.collectors.host import shown
from tests.exporter.fake_proc import FakeProc, process, torchrun
from tests.exporter.node import Clock, FixedNvml, node
from tests.exporter.snapshots import snapshot

A, B = (GpuSample(i, up=True, uuid=f"GPU-{i}", pci_bus_id=f"0000:1{i}") for i in range(2))
UNNAMED = GpuSample(1, up=False)


HANGS: Final = StuckCall("nvmlInit", None, 7.5, 1)
GONE: Final = NodeSample(1.0, 0, error_reason=NoGpuReason.DRIVER_NOT_LOADED)


def devices(nvml: NvmlSource, *seen: GpuSample) -> list[str]:
    """Return what is told of a node that was seen to have *seen*."""
    expected = ExpectedGpus()
    expected.see(NodeSample(1.0, len(seen), gpus=seen))
    return shown(GpuDevicesCollector(nvml, expected))


@pytest.mark.parametrize(
    ("nvml", "seen", "ups"),
    [
        # Without its driver, a node that has GPUs differs from one that never had any.
        (FixedNvml(GONE), [A], [" GPU-0 0.0"]),
        # One that fell off the bus before the reboot is exposed by its UUID, without an index.
        (node(A), [A, B], ["0 GPU-0 1.0", " GPU-1 0.0"]),
        # One that is lost from the start has the UUID that it had before, if one is missing.
        (node(A, UNNAMED), [A, B], ["0 GPU-0 1.0", "1 GPU-1 0.0"]),
        (node(A, UNNAMED), [A], ["0 GPU-0 1.0", "1  0.0"]),
    ],
)
def test_gpu_that_is_no_longer_listed_is_down(
    nvml: NvmlSource, seen: list[GpuSample], ups: list[str]
) -> None:
    told = devices(nvml, *seen)
    found = [line.split('"') for line in told if line.startswith("rankskew_gpu_up{")]

    assert [f"{each[1]} {each[3]}{each[4][1:]}" for each in found] == ups
    assert f"rankskew_gpus_expected {len(seen)}.0" in told


def test_node_of_whose_gpus_nothing_is_known() -> None:
    """A call that hangs is named for as long as it does, though no sample is fresh.

    Until NVML has answered the number of GPUs is absent, not 0.
    """
    hangs = devices(FixedNvml(None, worker_up=False, stuck_call=HANGS))
    assert 'rankskew_nvml_call_stuck_seconds{function="nvmlInit",gpu=""} 7.5' in hangs
    assert "gpus_visible" not in "".join(devices(FixedNvml(NodeSample(2.0, gpus_visible=None))))


def test_last_that_is_heard_of_a_gpu_stays_while_it_is_down() -> None:
    """XID 79. Idle (0x1) and a display's clock (0x100) hold up no training, and are not told."""
    lost = GpuSample(2, up=False, uuid="GPU-a", xid_events=7, xid_errors={"79": 1})
    idle = GpuSample(3, up=True, throttle_reasons=0x101)
    who = 'gpu="2",gpu_uuid="GPU-a"'

    assert shown(GpuReadingsCollector("gpu_throttle", node(idle))) == []
    assert shown(GpuReadingsCollector("gpu_xid", node(lost))) == [
        f"rankskew_gpu_xid_events_total{{{who}}} 7.0",
        f'rankskew_gpu_xid_errors_total{{{who},xid="79"}} 1.0',
    ]


MINUTE: Final = 60.0
FINE: Final = GpuSample(
    0, up=True, uuid="GPU-a", gpu_busy_percent=90.0, processes=(GpuProcess(10),)
)
NEXT: Final = replace(FINE, index=1, uuid="GPU-b", processes=())
DIVIDED: Final = (MigDevice("MIG-a", 1, 0, "1g", sm_active_percent=50.0),)


class Node(FixedNvml):
    """A node whose GPUs change; rank 0 runs on GPU-a as process 10."""

    def __init__(
        self,
        gpus: Sequence[GpuSample] = (FINE, NEXT),
        expected: ExpectedGpus | None = None,
        thresholds: Thresholds | None = None,
        error_reason: NoGpuReason | None = None,
        **nvml: Any,
    ) -> None:
        sample = NodeSample(1.0, len(gpus), gpus=tuple(gpus), error_reason=error_reason)
        super().__init__(replace(sample, worker_pid=1), **nvml)
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.processes = {10: process(10, torchrun(0)), 20: process(20, {})}
        self._collector = GpuFaultsCollector(
            RankJoin(self, lambda: self.processes, self.store),
            self.store,
            self,
            expected or ExpectedGpus(),
            thresholds or Thresholds(),
            "node-1",
        )

    def faults(self) -> str:
        """Return what is exposed now: each fault and its detail, and its value if that is not 1.

        Those that are not told to rank 0 on GPU-a have @, the GPU, / and the rank at their end.
        """
        found = []
        for line in shown(self._collector):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            to, value = f"@{labels['gpu']}/{labels['rank']}", line.rpartition(" ")[2]
            words = labels["fault"], labels["detail"], value, to
            found.append(" ".join(word for word in words if word not in ("", "1.0", "@0/0")))
        return ", ".join(found)

    def after(
        self,
        seconds: float,
        worker_pid: int | None = None,
        neighbour: dict[str, Any] | None = None,
        **readings: Any,
    ) -> str:
        """Return the faults *seconds* later, when GPU-a, or its *neighbour*, has other readings."""
        assert self.sample is not None
        self.clock.seconds += seconds
        of_each = (readings, neighbour or {})
        gpus = [replace(gpu, **of) for gpu, of in zip(self.sample.gpus, of_each, strict=False)]
        pid = worker_pid or self.sample.worker_pid
        self.sample = replace(self.sample, gpus=tuple(gpus), worker_pid=pid)
        return self.faults()


# So many seconds later these readings of GPU-a are other, and this is told.
Look = tuple[float, dict[str, Any], str]
LOST: Final = {"up": False, "processes": (), "gpu_busy_percent": None, "xid_errors": {"79": 1}}
THROTTLED: Final = (
    {"hw_slowdown": 1000.0, "sw_thermal_slowdown": 0.0, "sw_power_cap": 0.0},
    {"hw_slowdown": 1060.0, "sw_thermal_slowdown": 30.0, "sw_power_cap": 300.0},
)
WIDE: Final = {"pcie_link_width": 16, "pcie_link_generation_max": 4}
# 16 lanes of generation 4 carry 31.5 GB/s.
BUSY_LINK: Final = {
    "pcie_transmit_bytes_per_second": 2e9,
    "pcie_receive_bytes_per_second": 0.75 * 31.52e9,
}
LINKS_DOWN: Final = {"nvlink_links_up": 16, "nvlink_link_states": {"10": 0, "7": 0}}


def errors(name: str, told: str, of: Callable[[int], Any] = lambda count: count) -> list[Look]:
    """Count errors: the mean of five minutes is told beyond one a second.

    What was there before does not count, nor do five minutes that a reset cuts short.
    """
    return [
        (0.0, {name: of(1000)}, ""),
        (5 * MINUTE, {name: of(1300)}, ""),
        (5 * MINUTE, {name: of(1601)}, told),
        (15.0, {name: of(5)}, told),
        (6 * MINUTE, {}, ""),
    ]


SPINS: Final = {
    "gpu_busy_percent": 100.0,
    "power_milliwatts": 70_000,
    "power_limit_milliwatts": 700_000,
}


def recovered(*times: int) -> dict[str, Any]:
    """Return how many *times* each of a GPU's links has recovered."""
    return {"nvlink_link_recoveries": {str(link): each for link, each in enumerate(times)}}


FAULTS: Final[dict[str, list[Look]]] = {
    # A rank dies with its GPU, which lists no process any more: it is told for ten minutes.
    "lost": [
        (0.0, {}, ""),
        (MINUTE, LOST, "lost, xid 79"),
        (9 * MINUTE, {}, "lost, xid 79"),
        (2 * MINUTE, {}, "lost @0/"),
    ],
    # For an hour: a GPU counts over its life. A row that could not be, or is to be, replaced stays.
    "memory": [
        (0.0, {"ecc_uncorrected_errors": 7}, ""),
        (30 * MINUTE, {"ecc_uncorrected_errors": 8, "row_remap_pending": 1}, "memory uncorrected"),
        (59 * MINUTE, {}, "memory uncorrected"),
        (2 * MINUTE, {}, "row_remap_pending"),
        (0.0, {"row_remap_failed": 1}, "memory row_remap_failed"),
    ],
    # A new worker counts from 0: the fault stays for its ten minutes, and comes again, though the
    # count is the same.
    "an XID and a new worker": [
        (0.0, {"xid_errors": {"79": 1}}, "xid 79"),
        (MINUTE, {"xid_errors": {}, "worker_pid": 2}, "xid 79"),
        (10 * MINUTE, {"xid_errors": None}, ""),
        (MINUTE, {"xid_errors": {"79": 1}}, "xid 79"),
        (11 * MINUTE, {}, ""),
        (15.0, {"worker_pid": 3}, "xid 79"),
    ],
    "errors of PCIe": errors("pcie_errors", "pcie_errors"),
    "replays of PCIe": errors("pcie_replays", "pcie_errors"),
    "errors of a link": errors(
        "nvlink_link_errors", "nvlink_errors 7", lambda count: {"3": 1, "7": count}
    ),
    # In three windows of an hour, which one error a second does not reach; all links together, as
    # after a reset, or two windows only, are nothing. A count that begins anew goes on.
    "a link that recovers again and again": [
        (0.0, recovered(0, 4, 0, 0), ""),
        (5 * MINUTE, recovered(0, 5, 0, 0), ""),
        (7 * MINUTE, recovered(1, 6, 1, 1), ""),
        (7 * MINUTE, {}, ""),
        (7 * MINUTE, recovered(1, 7, 1, 1), "nvlink_recoveries 1"),
        (MINUTE, recovered(2, 0, 2, 2), "nvlink_recoveries 1"),
        (30 * MINUTE, recovered(3, 1, 3, 3), ""),
        (50 * MINUTE, {}, ""),
    ],
    "fabric": [
        (0.0, {"fabric_trouble": "in progress"}, "fabric in progress"),
        (0.0, {"mig_devices": ()}, ""),
        (0.0, {"mig_devices": None, "fabric_trouble": ""}, ""),
    ],
    # Fewer links than an hour ago, or than the neighbours have, for as long as they have more.
    "links": [
        (0.0, {"nvlink_links_up": 18, "neighbour": {"nvlink_links_up": 18}}, ""),
        (MINUTE, LINKS_DOWN, "nvlink 7,10"),
        (90 * MINUTE, {}, "nvlink 7,10"),
        (0.0, {"neighbour": {"nvlink_links_up": None}}, ""),
        (MINUTE, {"nvlink_links_up": 0}, "nvlink 7,10"),
    ],
    # A card without a bridge has none up, and MIG takes links down on purpose.
    "links that are missed by nobody": [
        (0.0, {"nvlink_links_up": 0, "neighbour": {"nvlink_links_up": 4}}, ""),
        (0.0, {"nvlink_links_up": 1, "mig_devices": ()}, ""),
    ],
    # Slower than a neighbour for two minutes at work, or than P2 whatever the neighbours do.
    "slow state": [
        (0.0, {"performance_state": 2, "neighbour": {"performance_state": 0}}, ""),
        (119.0, {}, ""),
        (1.0, {}, "pstate P2"),
        (1.0, {"gpu_busy_percent": 10.0}, ""),
        (300.0, {"gpu_busy_percent": 90.0, "neighbour": {"performance_state": 2}}, ""),
        (10.0, {"performance_state": 3, "neighbour": {"performance_state": 3}}, ""),
        (120.0, {}, "pstate P3, pstate P3 @1/"),
    ],
    # At rest only the lanes are known.
    "narrow or slow link": [
        (0.0, {"pcie_link_width": 4, "pcie_link_width_max": 16}, "pcie_link x4 of x16"),
        (
            MINUTE,
            {"pcie_link_width": 16, "pcie_link_generation": 4, "pcie_link_generation_max": 5},
            "pcie_link generation 4 of 5",
        ),
        (MINUTE, {"pcie_link_generation": None}, ""),
    ],
    # Fully busy at little, flat power: not while its cores work, nor at a power that changes.
    "a kernel that hangs": [
        (0.0, SPINS, ""),
        (5 * MINUTE, {"power_milliwatts": 74_000}, "stands_still"),
        (15.0, {"power_milliwatts": 80_000}, ""),
        (5 * MINUTE, {"tensor_active_percent": 0.1, "sm_active_percent": 24.0}, "stands_still"),
        (15.0, {"sm_active_percent": 60.0}, ""),
        (15.0, {"sm_active_percent": None, "power_milliwatts": 250_000}, ""),
        (6 * MINUTE, {}, ""),
    ],
    # The share of five minutes, over a tenth; an idle GPU holds up nobody.
    "throttled": [
        (0.0, {"throttle_seconds": THROTTLED[0]}, ""),
        (4 * MINUTE, {"throttle_seconds": THROTTLED[1]}, "throttled hw_slowdown 0.2"),
        (15.0, {"throttle_seconds": {"hw_slowdown": 5.0}}, "throttled hw_slowdown 0.2"),
        (0.0, {"gpu_busy_percent": 10.0}, ""),
        (0.0, {"gpu_busy_percent": None, "mig_devices": DIVIDED}, "throttled hw_slowdown 0.2"),
    ],
    # A full link of a GPU that hardly computes; SM activity counts where it is known.
    "full link": [
        (0.0, WIDE | BUSY_LINK | {"sm_active_percent": 30.0}, ""),
        (MINUTE, {}, "pcie_saturated receive 0.75"),
        (0.0, {"sm_active_percent": None}, ""),
        (0.0, {"gpu_busy_percent": 40.0}, "pcie_saturated receive 0.75"),
        (5 * MINUTE, {"pcie_receive_bytes_per_second": 1e9}, ""),
    ],
}


@pytest.mark.parametrize("looks", FAULTS.values(), ids=FAULTS)
def test_fault_is_told_while_it_lasts(looks: list[Look]) -> None:
    """To each rank on the GPU, under its node's name."""
    node = Node()
    told = [node.after(seconds, **readings) for seconds, readings, _ in looks]

    assert told == [fault for _, _, fault in looks]


def test_fault_is_told_also_while_processes_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where one hangs in the driver of its GPU."""
    node = Node()
    assert node.faults() == ""
    monkeypatch.setattr(RankJoin, "ranks", Mock(side_effect=WatchHangs("hangs")))

    assert node.after(MINUTE, xid_errors={"79": 1}) == "xid 79"


SEEN = (FINE, NEXT)
Samples = Sequence[GpuSample]
STUCK = replace(HANGS, seconds=61.0)


@pytest.mark.parametrize(
    ("gpus", "seen", "number", "how", "told"),
    [
        # What is missing by name is not missing by number as well.
        (SEEN, (), 3, {}, "missing 2 of 3 @/"),
        ((FINE,), SEEN, 3, {}, "lost @/"),
        # An upgrade of the driver loses no GPU; what is wrong then is told once.
        ((), SEEN, 0, {"error_reason": NoGpuReason.VERSION_MISMATCH}, "nvml version_mismatch @/"),
        # Only a node that had GPUs misses the driver.
        ((), (), 0, {"error_reason": NoGpuReason.NO_LIBRARY}, ""),
        ((), (), 8, {"error_reason": NoGpuReason.NO_LIBRARY}, "nvml no_library @/"),
        # A call that hangs on a single GPU makes that GPU lost instead.
        (SEEN, (), 0, {"stuck_call": STUCK}, "nvml call_stuck @/"),
        (SEEN, (), 0, {"stuck_call": replace(STUCK, seconds=60.0)}, ""),
        (SEEN, (), 0, {"stuck_call": replace(STUCK, gpu=0)}, ""),
    ],
)
def test_fault_of_the_node_is_told(
    gpus: Samples, seen: Samples, number: int, how: dict[str, Any], told: str
) -> None:
    expected = ExpectedGpus(number=number)
    if seen:
        expected.see(NodeSample(1.0, len(seen), gpus=tuple(seen)))

    assert Node(gpus, expected, **how).faults() == told


def test_worker_that_is_down_for_half_of_five_minutes_is_told() -> None:
    """It is replaced within seconds; on a release it is down on purpose."""
    node = Node(worker_up=False)
    assert [node.after(seconds) for seconds in (0.0, 150.0)] == ["", ""]
    assert node.after(1.0) == "nvml worker_down @/"
    node.released = True
    assert node.faults() == ""
    for seconds, node.released, node.worker_up in ((300.0, True, False), (1.0, False, True)):
        assert node.after(seconds) == ""


def test_job_may_allow_for_more_throttling() -> None:
    node = Node(thresholds=Thresholds({("llama", "throttle_ratio"): 0.5}))
    node.after(0.0, throttle_seconds=THROTTLED[0])

    assert node.after(5 * MINUTE, throttle_seconds=THROTTLED[1]) == ""


def test_fault_is_told_to_few_of_those_who_begin_again_and_again() -> None:
    """Each would be a series: a rank may have another peer group in each push."""
    tenants = Tenants()
    for second in range(600):
        for rank in (0, second):
            tenants.see([RankOnGpu("j", f"g{second}", rank, "", "probe", "GPU-a")], second)

    assert len(tenants.of("GPU-a")) == MOST_REMEMBERED


def test_use_of_a_gpu_is_told() -> None:
    """Another job's rank is foreign as well, but that is told as sharing.

    One of 20 near CPUs is the default; a rank that is not bound has more.
    """
    node = Node()
    assert node.after(0.0, processes=(GpuProcess(10), GpuProcess(20))) == "foreign_process"
    node.processes = {10: process(10, torchrun(0)), 20: process(20, torchrun(1))}
    assert node.faults() == "shared, shared @0/1"
    assert node.after(0.0, mig_devices=DIVIDED) == ""
    # Anyone may report a rank; where processes are seen, it is not on that GPU.
    node.processes[20] = process(20, {})
    node.store.put(snapshot(job_id="another", rank_info={"gpu_uuid": FINE.uuid}))
    assert node.after(0.0, mig_devices=None) == "foreign_process"

    near = Node((replace(FINE, numa_node=0, cpu_affinity=(0, 1)), NEXT))
    for cpus, told in ((range(2, 50), "numa"), (range(1, 17), "")):
        near.processes = {10: process(10, torchrun(0), cpus=frozenset(cpus))}
        assert near.faults() == told


SLURM: Final = Cgroup(slurm_job="7")
SLURM_2: Final = "0::/system.slice/slurmstepd.scope/job_7"


@pytest.mark.parametrize(
    ("cgroup", "variables", "neighbour", "told"),
    [
        (SLURM, {"SLURM_STEP_GPUS": "0,3"}, {"minor_number": 3}, "unused @1/"),
        (SLURM, {"SLURM_JOB_GPUS": "0,3"}, {"minor_number": 3}, "unused @1/"),
        (Cgroup(pod_uid="p"), {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, {}, "unused @1/"),
        # It has a process, is not the job's, or nobody knows: a user may set what CUDA sees.
        (SLURM, {"SLURM_STEP_GPUS": "0,3"}, {"minor_number": 3, "processes": None}, ""),
        (SLURM, {"SLURM_STEP_GPUS": "0,3"}, {"minor_number": 3, "mig_devices": ()}, ""),
        (SLURM, {"SLURM_STEP_GPUS": "0"}, {"minor_number": 3}, ""),
        (Cgroup(), {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, {}, ""),
        (SLURM, {"CUDA_VISIBLE_DEVICES": "0,1"}, {"minor_number": 1}, ""),
    ],
)
def test_gpu_that_a_job_holds_and_does_not_use_is_told(
    cgroup: Cgroup, variables: dict[str, str], neighbour: dict[str, Any], told: str
) -> None:
    """After ten minutes, of a job that runs on another GPU of the node."""
    node = Node()
    node.processes = {10: process(10, torchrun(0, **variables), cgroup=cgroup)}

    assert node.after(0.0, neighbour=neighbour) == node.after(599.0) == ""
    assert node.after(1.0) == told
    assert node.after(0.0, neighbour={"processes": (GpuProcess(20),)}) == ""


def test_gpu_that_a_rank_has_left_is_held_while_its_job_runs() -> None:
    """Without a variable that says so; once the job has ended, or is requeued, nobody holds it."""
    node = Node()
    node.processes = {n: process(n, torchrun(n - 10), cgroup=SLURM) for n in (10, 11)}
    node.after(0.0, neighbour={"processes": (GpuProcess(11),)})

    assert node.after(MINUTE, neighbour={"processes": ()}) == ""
    assert node.after(10 * MINUTE) == "unused @1/"
    node.processes = {}
    assert node.after(0.0, processes=()) == ""
    node.processes = {10: process(10, torchrun(0), cgroup=SLURM)}
    assert node.after(0.0, processes=(GpuProcess(10),)) == node.after(10 * MINUTE) == ""


@pytest.mark.parametrize(
    ("job", "variables", "left", "told"),
    [
        # The step extern, a batch script, that of LSF, the pause of a pod: whatever is left.
        (SLURM_2, {"SLURM_STEP_GPUS": "0,3"}, "/step_extern", "unused @0/, unused @1/"),
        ("5:cpu:/slurm/uid_0/job_7", {}, "/step_batch", "unused @0/"),
        ("3:memory:/lsf/c/job.7.9.17", {}, "", "unused @0/"),
        (f"0::/kubepods/pod{'a' * 32}", {}, "/pause", "unused @0/"),
        # Another job is left; or nothing says whose the GPUs are.
        (SLURM_2, {"SLURM_STEP_GPUS": "0,3"}, "8/step_extern", ""),
        (f"0::/docker/{'a' * 64}", {"SLURM_STEP_GPUS": "0,3"}, "", ""),
    ],
)
def test_gpus_of_an_allocation_whose_ranks_have_ended_are_told(
    tmp_path: Path, job: str, variables: dict[str, str], left: str, told: str
) -> None:
    """While any process is left in it, here a sleep."""
    proc, node = FakeProc(tmp_path), Node((FINE, replace(NEXT, minor_number=3)))
    proc.add(10, torchrun(0, **variables), cgroup=f"{job}/step_0")
    proc.add(11, cgroup=job + left, name="sleep")
    watch = ProcessWatch(node, Proc(tmp_path))

    def after(seconds: float, **readings: Any) -> str:
        watch.look()
        node.processes = dict(watch.processes())
        return node.after(seconds, **readings)

    assert after(0.0) == ""
    proc.end(10)
    assert after(0.0) == after(0.0, processes=()) == after(599.0) == ""
    assert after(1.0) == told
    proc.end(11)
    assert after(0.0) == ""


def test_rank_that_fell_silent_is_no_longer_on_its_gpu() -> None:
    """It died or moved away; what it left on the GPU concerns it for ten minutes more."""
    node = Node((replace(FINE, processes=()), NEXT))
    node.processes = {}
    node.store.put(snapshot(rank=3, rank_info={"gpu_uuid": "GPU-a"}))

    assert node.after(0.0, row_remap_failed=1) == "memory row_remap_failed @0/3"
    assert node.after(61.0) == "memory row_remap_failed @0/3"
    assert node.after(10 * MINUTE) == "memory row_remap_failed @0/"
