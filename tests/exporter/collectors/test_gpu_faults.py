"""A GPU's faults are told to each rank on it, by its node's name, only while they last."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from exporter.collectors.gpu.faults import GpuFaultsCollector
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
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.clock import Clock
from tests.exporter.collectors.expose import expose, series
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.snapshots import snapshot

MINUTE: Final = 60.0
ON_GPU: Final = (GpuProcess(10),)
FINE: Final = GpuSample(0, up=True, uuid="GPU-a", gpu_busy_percent=90.0, processes=ON_GPU)
NEXT: Final = replace(FINE, index=1, uuid="GPU-b", processes=())


@dataclass
class Node:
    """A node whose GPUs change; rank 0 runs on GPU-a as process 10."""

    gpus: tuple[GpuSample, ...] = (FINE, NEXT)
    expected: ExpectedGpus = field(default_factory=ExpectedGpus)
    thresholds: Thresholds = field(default_factory=Thresholds)
    error_reason: str | None = None
    worker_pid: int | None = 1  # None: it has said nothing lately.
    worker_up: bool = True
    worker_restarts: int = 0
    stuck_call: StuckCall | None = None
    released: bool = False
    processes: Mapping[int, Process] = field(
        default_factory=lambda: {10: process(10, torchrun(0)), 20: process(20, {})}
    )

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.collector = GpuFaultsCollector(
            RankJoin(self, lambda: self.processes, self.store),
            self.store,
            self,
            self.expected,
            self.thresholds,
            "node-1",
        )

    def latest(self) -> NodeSample | None:
        if self.worker_pid is None:
            return None
        return NodeSample(
            1.0,
            len(self.gpus),
            gpus=self.gpus,
            error_reason=self.error_reason,
            worker_pid=self.worker_pid,
        )

    def lines(self) -> list[str]:
        """What is exposed now."""
        return series(expose(self.collector))

    def faults(self) -> dict[str, float]:
        """Return the value of each "fault detail gpu rank" that is exposed now."""
        found = {}
        for line in self.lines():
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            words = (labels[name] for name in ("fault", "detail", "gpu", "rank"))
            found[" ".join(filter(None, words))] = float(line.rpartition(" ")[2])
        return found

    def after(self, seconds: float, **readings: Any) -> dict[str, float]:
        """Return the faults *seconds* later, when GPU-a has these *readings*."""
        self.clock.seconds += seconds
        self.gpus = (replace(self.gpus[0], **readings), *self.gpus[1:])
        return self.faults()


SOURCE: NvmlSource = Node()  # mypy holds the stand-in to the protocol.


def test_rank_is_told_of_its_lost_gpu_for_ten_minutes() -> None:
    """It dies with its GPU, which lists no process any more."""
    node = Node()
    node.faults()
    gone = GpuSample(0, up=False, uuid="GPU-a", xid_errors={"79": 1})
    node.gpus = (gone, NEXT)

    assert node.after(MINUTE) == {"lost 0 0": 1.0, "xid 79 0 0": 1.0}
    assert node.after(9 * MINUTE) == {"lost 0 0": 1.0, "xid 79 0 0": 1.0}
    assert node.after(2 * MINUTE) == {"lost 0": 1.0}


def test_gpu_that_is_no_longer_listed_is_lost_and_one_never_seen_is_missing() -> None:
    """What is missing by name is not missing by number as well."""
    expected = ExpectedGpus(number=3)
    node = Node(expected=expected)
    assert node.faults() == {"missing 2 of 3": 1.0}

    expected.see(NodeSample(1.0, 2, "1", "1", (FINE, NEXT)))
    node.gpus = (FINE,)
    assert node.faults() == {"lost": 1.0}


def test_no_gpu_is_lost_while_none_can_be_read() -> None:
    """An upgrade of the driver loses no GPU; what is wrong then is told once."""
    expected = ExpectedGpus()
    expected.see(NodeSample(1.0, 2, "1", "1", (FINE, NEXT)))
    node = Node((), expected, error_reason=NoGpuReason.VERSION_MISMATCH)
    assert node.faults() == {"nvml version_mismatch": 1.0}

    node.error_reason = NoGpuReason.NO_GPU
    assert node.faults() == {"lost": 1.0}


@pytest.mark.parametrize("reason", [NoGpuReason.NO_LIBRARY, NoGpuReason.DRIVER_NOT_LOADED])
def test_node_that_never_had_a_gpu_needs_no_driver(reason: NoGpuReason) -> None:
    """Only one that had GPUs misses it."""
    assert Node((), error_reason=reason).faults() == {}
    assert Node((), ExpectedGpus(number=8), error_reason=reason).faults() == {f"nvml {reason}": 1.0}


def test_call_that_hangs_on_the_node_is_told_after_a_minute() -> None:
    """One on a single GPU makes that GPU lost instead."""
    node = Node(stuck_call=StuckCall("nvmlInit", None, 61.0, 1))
    assert node.faults() == {"nvml call_stuck": 1.0}

    node.stuck_call = StuckCall("nvmlInit", None, 60.0, 1)
    assert node.faults() == {}
    node.stuck_call = StuckCall("nvmlDeviceGetMemoryInfo", 0, 61.0, 1)
    assert node.faults() == {}


def test_worker_that_is_down_for_half_of_five_minutes_is_told() -> None:
    """It is replaced within seconds; on a release it is down on purpose."""
    node = Node(worker_up=False)
    node.faults()
    assert node.after(150.0) == {}
    assert node.after(1.0) == {"nvml worker_down": 1.0}
    node.released = True
    assert node.faults() == {}


def test_errors_of_the_memory_are_told_for_an_hour() -> None:
    """A GPU counts over its life; a row that could not be replaced, or is to be, stays."""
    node = Node((replace(FINE, ecc_uncorrected_errors=7), NEXT))
    assert node.faults() == {}
    assert node.after(30 * MINUTE, ecc_uncorrected_errors=8, row_remap_pending=1) == {
        "memory uncorrected 0 0": 1.0
    }
    assert node.after(59 * MINUTE) == {"memory uncorrected 0 0": 1.0}
    assert node.after(2 * MINUTE) == {"row_remap_pending 0 0": 1.0}
    assert node.after(0.0, row_remap_failed=1) == {"memory row_remap_failed 0 0": 1.0}


def test_xid_error_is_told_although_the_worker_is_replaced() -> None:
    """A new worker counts from 0: the fault stays for its ten minutes, and comes again."""
    node = Node((replace(FINE, xid_errors={"79": 1}), NEXT))
    assert node.faults() == {"xid 79 0 0": 1.0}
    node.worker_pid = 2
    assert node.after(MINUTE, xid_errors={}) == {"xid 79 0 0": 1.0}
    assert node.after(10 * MINUTE, xid_errors=None) == {}
    assert node.after(MINUTE, xid_errors={"79": 1}) == {"xid 79 0 0": 1.0}


def test_xid_error_is_told_that_a_worker_counts_as_often_as_the_one_before() -> None:
    """Between two scrapes the worker may be replaced and the error come again."""
    node = Node((replace(FINE, xid_errors={"79": 1}), NEXT))
    node.faults()
    assert node.after(11 * MINUTE) == {}
    for worker_pid in (None, 1):  # It was only slow.
        node.worker_pid = worker_pid
        assert node.after(15.0) == {}
    node.worker_pid = 2
    assert node.after(15.0, xid_errors={"79": 1}) == {"xid 79 0 0": 1.0}


@pytest.mark.parametrize(
    ("counts", "fault"),
    [
        ([{"throttle_seconds": {"hw_slowdown": each}} for each in (900.0, 960.0, 5.0)], 0.2),
        ([{"pcie_replays": each} for each in (1000, 1601, 5)], 1.0),
        ([{"nvlink_link_errors": {"7": each}} for each in (1000, 1601, 5)], 1.0),
    ],
)
def test_what_was_counted_stays_so_when_a_count_begins_again(
    counts: list[dict[str, Any]], fault: float
) -> None:
    """A new worker, or a GPU that was reset, is not five minutes without a fault."""
    before, counted, again = counts
    node = Node()
    node.after(0.0, **before)
    assert list(node.after(4 * MINUTE, **counted).values()) == [fault]
    assert list(node.after(15.0, **again).values()) == [fault]
    assert node.after(6 * MINUTE) == {}


def test_nvlinks_are_fewer_than_an_hour_ago_or_than_the_neighbours() -> None:
    """A GPU alone is held against its past; beside others, for as long as they have more."""
    node = Node((replace(FINE, nvlink_links_up=18), replace(NEXT, nvlink_links_up=18)))
    assert node.faults() == {}
    down = {"nvlink_links_up": 16, "nvlink_link_states": {"10": 0, "7": 0}}
    assert node.after(MINUTE, **down) == {"nvlink 7,10 0 0": 1.0}
    assert node.after(90 * MINUTE) == {"nvlink 7,10 0 0": 1.0}
    node.gpus = (node.gpus[0], replace(NEXT, nvlink_links_up=None))
    assert node.faults() == {}
    assert node.after(MINUTE, nvlink_links_up=0) == {"nvlink 7,10 0 0": 1.0}
    # A card without a bridge has none up, and MIG takes links down on purpose.
    assert Node((replace(FINE, nvlink_links_up=0), replace(NEXT, nvlink_links_up=4))).faults() == {}
    divided = Node((replace(FINE, nvlink_links_up=2, mig_devices=()), NEXT))
    assert divided.faults() == {}
    assert divided.after(MINUTE, nvlink_links_up=1) == {}


@pytest.mark.parametrize(
    ("errors", "fault"),
    [
        ("pcie_errors", "pcie_errors 0 0"),
        ("pcie_replays", "pcie_errors 0 0"),
        ("nvlink_link_errors", "nvlink_errors 7 0 0"),
    ],
)
def test_errors_of_links_are_told_beyond_one_a_second(errors: str, fault: str) -> None:
    """Mean of five minutes; what was there before does not count."""

    def reading(count: int) -> Any:
        return {"3": 1, "7": count} if errors.startswith("nvlink") else count

    node = Node()
    assert node.after(0.0, **{errors: reading(1000)}) == {}
    assert node.after(5 * MINUTE, **{errors: reading(1300)}) == {}
    assert node.after(5 * MINUTE, **{errors: reading(1601)}) == {fault: 1.0}
    assert node.after(5 * MINUTE, **{errors: reading(1601)}) == {}


def test_slow_state_is_told_after_two_minutes_at_work() -> None:
    """Slower than a neighbour, or than P2 whatever the neighbours do."""
    node = Node((replace(FINE, performance_state=2), replace(NEXT, performance_state=0)))
    assert node.faults() == {}
    assert node.after(119.0) == {}
    assert node.after(1.0) == {"pstate P2 0 0": 1.0}
    assert node.after(1.0, gpu_busy_percent=10.0) == {}
    node.gpus = (replace(FINE, performance_state=2), replace(NEXT, performance_state=2))
    assert node.after(300.0) == {}
    node.gpus = (replace(FINE, performance_state=3), replace(NEXT, performance_state=3))
    node.after(10.0)
    assert set(node.after(120.0)) == {"pstate P3 0 0", "pstate P3 1"}


def test_looks_in_quick_succession_leave_the_memory_alone() -> None:
    """Who scrapes twenty times a second does not fill it."""
    node = Node((replace(FINE, performance_state=3), NEXT))
    node.faults()
    node.after(1.0, performance_state=0)  # Not looked at.
    assert node.after(119.0, performance_state=3) == {"pstate P3 0 0": 1.0}


def test_narrow_or_slow_pcie_link_is_told_with_what_it_lacks() -> None:
    """At rest only the lanes are known."""
    node = Node((replace(FINE, pcie_link_width=4, pcie_link_width_max=16), NEXT))
    assert node.faults() == {"pcie_link x4 of x16 0 0": 1.0}
    slow = {"pcie_link_generation": 4, "pcie_link_generation_max": 5}
    assert node.after(MINUTE, pcie_link_width=16, **slow) == {
        "pcie_link generation 4 of 5 0 0": 1.0
    }
    assert node.after(MINUTE, pcie_link_generation=None) == {}


def test_throttled_share_is_of_five_minutes_and_over_the_jobs_own_threshold() -> None:
    """A tenth, unless the job allows for more; an idle GPU holds up nobody."""
    seconds = {"hw_slowdown": 1000.0, "sw_thermal_slowdown": 0.0, "sw_power_cap": 0.0}
    later = {"hw_slowdown": 1060.0, "sw_thermal_slowdown": 30.0, "sw_power_cap": 300.0}
    node = Node((replace(FINE, throttle_seconds=seconds), NEXT))
    assert node.faults() == {}
    assert node.after(5 * MINUTE, throttle_seconds=later) == {"throttled hw_slowdown 0 0": 0.2}
    assert node.after(0.0, gpu_busy_percent=10.0) == {}
    divided = (MigDevice("MIG-a", 1, 0, "1g", sm_active_percent=50.0),)
    assert "throttled hw_slowdown 0 0" in node.after(
        0.0, gpu_busy_percent=None, mig_devices=divided
    )

    patient = Node(thresholds=Thresholds({("llama", "throttle_ratio"): 0.5}))
    patient.after(0.0, throttle_seconds=seconds)
    assert patient.after(5 * MINUTE, throttle_seconds=later) == {}


def test_full_pcie_link_of_a_gpu_that_hardly_computes_is_told() -> None:
    """16 lanes of generation 4 carry 31.5 GB/s; SM activity counts where it is known."""
    full = replace(
        FINE,
        pcie_link_width=16,
        pcie_link_generation_max=4,
        pcie_transmit_bytes_per_second=2e9,
        pcie_receive_bytes_per_second=0.75 * 31.52e9,
        sm_active_percent=30.0,
    )
    node = Node((full, NEXT))
    node.faults()
    assert node.after(MINUTE) == {"pcie_saturated receive 0 0": 0.75}
    assert node.after(0.0, sm_active_percent=50.0) == {}
    assert node.after(0.0, sm_active_percent=None) == {}
    assert node.after(0.0, gpu_busy_percent=40.0) == {"pcie_saturated receive 0 0": 0.75}
    assert node.after(5 * MINUTE, pcie_receive_bytes_per_second=1e9) == {}


def test_foreign_process_and_ranks_that_share_a_gpu_are_told_apart() -> None:
    """Another job's rank is foreign as well, but that is told as sharing."""
    node = Node()
    assert node.after(0.0, processes=(GpuProcess(10), GpuProcess(20))) == {
        "foreign_process 0 0": 1.0
    }
    node.processes = {10: process(10, torchrun(0)), 20: process(20, torchrun(1))}
    assert node.faults() == {"shared 0 0": 1.0, "shared 0 1": 1.0}
    divided = (MigDevice("MIG-a", 1, 0, "1g"), MigDevice("MIG-b", 2, 0, "1g"))
    assert node.after(0.0, mig_devices=divided) == {}


def test_rank_bound_far_from_its_gpu_is_told() -> None:
    """One of 20 near CPUs is the default; a rank that is not bound has more."""
    near = replace(FINE, numa_node=0, cpu_affinity=(0, 1))
    node = Node((near, NEXT))
    node.processes = {10: process(10, torchrun(0), cpus=frozenset(range(2, 50)))}
    assert node.faults() == {"numa 0 0": 1.0}
    node.processes = {10: process(10, torchrun(0), cpus=frozenset(range(1, 17)))}
    assert node.faults() == {}


def test_rank_that_fell_silent_is_no_longer_on_its_gpu() -> None:
    """It died or moved away; what it left on the GPU concerns it for ten minutes more."""
    node = Node((replace(FINE, processes=()), NEXT))
    node.processes = {}
    told = snapshot(rank=3, rank_info={"gpu_uuid": "GPU-a"})
    node.store.put(told)
    assert node.after(0.0, row_remap_failed=1) == {"memory row_remap_failed 0 3": 1.0}
    assert node.after(61.0) == {"memory row_remap_failed 0 3": 1.0}
    assert node.after(10 * MINUTE) == {"memory row_remap_failed 0": 1.0}
