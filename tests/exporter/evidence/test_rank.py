"""Figures of a rank come from its snapshots and from what its processes use."""

from collections.abc import Sequence
from typing import Any

import pytest

from exporter.evidence.rank import RankReadings
from exporter.evidence.ring import Increment, Ring
from exporter.processes.cgroup_cost import CgroupCost, Throttling
from exporter.processes.host_watch import HostCost
from exporter.processes.rank_cost import NANOSECONDS, TICKS_PER_SECOND, Cost
from exporter.ranks.store import HeldRank
from tests.exporter.snapshots import snapshot


def means(*rounds: Sequence[Increment]) -> dict[str, float]:
    ring = Ring()
    for number, each in enumerate(rounds):
        ring.add("rank", 5.0 * number, each)
    return ring.means("rank", 0.0)


def of_steps(*reports: tuple[float, dict[str, Any]]) -> dict[str, float]:
    """Return the figures after snapshots with these changes came, each at its second."""
    readings = RankReadings()
    held = [HeldRank(snapshot(**{"stage_seconds": {}, **each}), at) for at, each in reports]
    return means(*[list(readings.read_steps(each)) for each in held])


def of_host(*costs: HostCost, near: float | None = None) -> dict[str, float]:
    """Return the figures of looks that are five seconds apart."""
    readings = RankReadings()
    return means(
        *[list(readings.read_host(each, 5.0 * n, near)) for n, each in enumerate(costs, start=1)]
    )


def test_rank_that_tells_nothing_new_has_no_figures() -> None:
    """It is stuck, or starts; or has fallen silent, and keeps the means of the time before."""
    stuck = {"steps": 0, "stage_seconds": {"data": 1.0}}
    silent = (5.0, {"steps": 10, "gc_pause_seconds": 1.0, "tokens": 100})

    assert of_steps(*[(5.0 * n, stuck) for n in range(3)]) == {}
    assert of_steps(silent, silent, silent) == {}


def test_stages_are_means_of_a_step() -> None:
    """A stage that a rank lacks takes no time; one that occurs for the first time began at zero.

    The step has the wait for others, which is no stage of its own.
    """
    found = of_steps(
        (5.0, {"steps": 10, "stage_seconds": {"data": 1.0, "sync": 2.0}}),
        (10.0, {"steps": 20, "stage_seconds": {"data": 3.0, "sync": 6.0, "checkpoint": 4.0}}),
    )

    known = {"data_seconds": 0.2, "checkpoint_seconds": 0.4, "step_seconds": 1.0}
    assert {name: found[name] for name in known} == pytest.approx(known)
    assert found["eval_seconds"] == found["forward_seconds"] == 0.0
    assert "sync_seconds" not in found


def test_stages_that_nobody_measured_are_not_known() -> None:
    found = of_steps((0.0, {"steps": 10}), (1.0, {"steps": 20}))

    assert not [name for name in found if name.endswith("_seconds")]


def test_work_is_told_where_the_rank_counts_it() -> None:
    """Tokens and samples of a step; who does not count them has no such figure."""
    found = of_steps((0.0, {"steps": 10, "tokens": 800}), (5.0, {"steps": 14, "tokens": 1_200}))

    assert found == {"tokens_per_step": 100.0}


def test_garbage_collection_is_a_share_of_the_time() -> None:
    """Between the snapshots, not between the looks at them."""
    found = of_steps((100.0, {"gc_pause_seconds": 3.0}), (104.0, {"gc_pause_seconds": 4.0}))

    assert found == {"gc_ratio": 0.25}


def test_process_that_hides_its_readings_has_no_figures() -> None:
    """No permission, an old kernel, a cgroup without a quota: each is absent, and is not 0."""
    found = of_host(*[HostCost(Cost(), CgroupCost())] * 3)

    assert found == {"major_faults_per_second": 0.0}


def cost(seconds: float, **changes: Any) -> HostCost:
    """Return what a rank has used after *seconds* of an even load."""
    used = Cost(
        running_nanoseconds=round(0.6 * seconds * NANOSECONDS),
        run_queue_nanoseconds=round(0.2 * seconds * NANOSECONDS),
        workers_run_queue_nanoseconds=round(0.5 * seconds * NANOSECONDS),
        workers_cpu_ticks=round(1.5 * seconds * TICKS_PER_SECOND),
        read_bytes=round(1e6 * seconds),
        major_faults=round(2 * seconds),
        saturated_workers=3,
    )
    quota = Throttling(round(10 * seconds), round(2 * seconds))
    return HostCost(used, CgroupCost(quota, {"io": 0.1 * seconds, "cpu": seconds}), **changes)


def test_use_of_the_host_is_told() -> None:
    """By the second; workers that want a CPU wait for it in a share of that time."""
    assert of_host(cost(100.0), cost(105.0), cost(110.0), near=0.5) == pytest.approx(
        {
            "main_running_ratio": 0.6,
            "main_run_queue_ratio": 0.2,
            "workers_run_queue_ratio": 0.25,
            "read_bytes_per_second": 1e6,
            "major_faults_per_second": 2.0,
            "io_waiting_ratio": 0.1,
            "cpu_quota_throttled_ratio": 0.2,
            "saturated_workers": 3.0,
            "cpus_near_gpu_ratio": 0.5,
        }
    )


def test_look_that_is_read_again_says_nothing_new() -> None:
    """The ring is filled more often than the processes are looked at."""
    readings = RankReadings()
    rounds = [list(readings.read_host(cost(s), s)) for s in (100.0, 105.0, 105.0, 110.0)]

    assert rounds[2] == []
    assert means(*rounds)["main_running_ratio"] == pytest.approx(0.6)


def test_process_that_took_the_place_of_another_counts_from_zero() -> None:
    """Counters that fall have not grown; nothing is negative."""
    found = of_host(cost(100.0), cost(2.0), cost(7.0))

    assert found["main_running_ratio"] == pytest.approx(0.6)
    assert min(found.values()) >= 0.0
