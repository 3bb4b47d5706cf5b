"""Work, memory, pauses and life events of a rank are exposed, and no reading is no series."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from exporter.cgroups import Cgroup
from exporter.collectors.base import Collector
from exporter.collectors.rank.events import RankEventsCollector
from exporter.collectors.rank.gpus import RankGpusCollector
from exporter.collectors.rank.host import RankHostCollector
from exporter.collectors.rank.late_lines import LateLinesCollector
from exporter.collectors.rank.late_ranks import LateRanksCollector
from exporter.collectors.rank.ranks import RanksCollector
from exporter.collectors.rank.resources import RankResourcesCollector
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.cgroup_cost import RESOURCES, CgroupCost, Throttling
from exporter.processes.host_watch import HostCost, HostWatch, Look, to_follow
from exporter.processes.rank_cost import Cost
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import RANK_INFO_LABELS, RUNTIME_INFO_LABELS, Snapshot
from rank_probe.wire.stages import STAGES
from tests.exporter.collectors.expose import shown
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.nvml.fixed import node
from tests.exporter.running import ROOT
from tests.exporter.snapshots import late, snapshot, verdict

GOLDEN = ROOT / "tests" / "fixtures" / "exporter" / "rank_resources.txt"
SERIES_OF_A_RANK = 48
# Beyond those, where the node shows the rank's process: without them a rank that waits for CPUs or
# a disk is only "slow loading data". Without a CPU quota, or pressure, there are three fewer.
MORE_OF_ITS_HOST = 11
# Few ranks are named late, and a join that does not cover its job is rare.
MORE_WHILE_LATE = 11
MORE_WITHOUT_COVERAGE = 10

COMPLETE = snapshot(
    rank=3,
    samples=6_400,
    tokens=819_200,
    padding_tokens=40_960,
    gc_pause_seconds=0.75,
    cuda_memory_allocated_bytes=2**33,
    cuda_memory_reserved_bytes=2**34,
    cuda_alloc_retries=1,
)


def store(*snapshots: Snapshot) -> RankStore:
    held = RankStore(clock=lambda: 2_000.0)
    for each in snapshots:
        held.put(each)
    return held


def test_rank_that_reports_none_of_it_has_no_series() -> None:
    """A rank without a GPU and without counted work shows no zeros."""
    assert shown(RankResourcesCollector(store(snapshot()))) == []


def test_zero_that_was_read_is_exposed() -> None:
    """No retry so far is a reading: a rate over it needs the zero."""
    assert shown(RankResourcesCollector(store(snapshot(cuda_alloc_retries=0)))) == [
        'rankskew_cuda_alloc_retries_total{job_id="llama",peer_group="all",rank="0"} 0.0'
    ]


def test_exposition_is_the_golden_one() -> None:
    """What two ranks report, one of them bare, is exposed exactly as the fixture shows it."""
    registry = CollectorRegistry()
    registry.register(RankResourcesCollector(store(snapshot(), COMPLETE)))

    assert generate_latest(registry).decode() == GOLDEN.read_text()


def lines(held: RankStore, rank: Snapshot, *, of_host: bool) -> list[str]:
    """Return what is exposed where *rank* is a task of Slurm's in a pod, on a GPU."""
    task = process(rank.pid, torchrun(rank.rank), cgroup=Cgroup(pod_uid="p", slurm_job_id="7"))
    listed = (GpuProcess(rank.pid),)
    gpu = GpuSample(0, up=True, processes=listed, numa_node=0, cpu_affinity=(0, 1))
    join = RankJoin(node(gpu), lambda: {rank.pid: task}, held)
    watch = HostWatch(ROOT, ROOT)  # That has found all that a host can show of the ranks.
    cgroup = CgroupCost(Throttling(1, 1), dict.fromkeys(RESOURCES, 1.0))
    costs = {each.who: HostCost(Cost(*[1] * 8), cgroup) for each in to_follow(join.ranks(), ())}
    watch._latest = Look(costs, 0)
    host = RankHostCollector(join, held, watch)
    others: list[Collector] = [
        RanksCollector(held),
        RankResourcesCollector(held),
        RankEventsCollector(held),
        RankGpusCollector(join),
        LateRanksCollector(NodeJobs(held)),
        LateLinesCollector(held),
    ]
    found = [line for each in ([host] if of_host else others) for line in shown(each)]
    # One series a rank is charged to its GPU, one a job to the node.
    return [line for line in found if 'rank="3"' in line and "rankskew_gpu_" not in line]


def busiest(never_together: set[str], **changes: Any) -> Snapshot:
    """Return a rank that has all that can occur together, and is named late in every stage."""
    stages = [stage for stage in STAGES if stage not in never_together]
    own = [stage for stage in stages if stage != "sync"]
    rank = replace(
        COMPLETE,
        stage_seconds=dict.fromkeys(stages, 1.0),
        stage_host_seconds=dict.fromkeys(stages, 1.0),
        wait_caused_seconds=dict.fromkeys(own, 1.0),
        group_wait_seconds=1.0,
        joined_seconds=1.0,
        join_coverage=1.0,
        last_step_timestamp_seconds=1_060.0,
        stage_elapsed_seconds=20.0,
        rank_info=dict.fromkeys(RANK_INFO_LABELS, "x") | {"gpu_uuid": ""},
        runtime_info=dict.fromkeys(RUNTIME_INFO_LABELS, "x"),
        verdict=verdict(late=(late(rank=3, gpus=dict.fromkeys(own, 1.0)),)),
        verdict_age_seconds=1.0,
        group_formed_timestamp_seconds=1.0,
        block_steps=1,
        block_seconds=dict.fromkeys(stages, 1.0),
        late_lines=[{"stage": "data", "place": f"f (f.py:{n})", "share": 0.2} for n in range(5)],
        lifecycle_events=[
            {"number": 1, "event": "init", "began_timestamp_seconds": 1.0, "seconds": None}
        ],
    )
    assert None not in [getattr(rank, name) for name in rank.__slots__]
    return replace(rank, **changes)


NOT_LATE = {"verdict": verdict(late=()), "late_lines": []}
NO_JOIN: dict[str, Any] = {
    "late_lines": [],
    "wait_caused_seconds": {},
    "group_wait_seconds": None,
    "joined_seconds": None,
    "join_coverage": None,
    "verdict": None,
    "verdict_age_seconds": None,
}


# A rank that has ended has no heartbeat, is in no stage and on no GPU, but knows how long it took.
@pytest.mark.parametrize(
    ("changes", "most"),
    [
        (NOT_LATE, SERIES_OF_A_RANK),
        (NOT_LATE | {"finished": True}, SERIES_OF_A_RANK),
        (NO_JOIN, SERIES_OF_A_RANK),
        ({}, SERIES_OF_A_RANK + MORE_WHILE_LATE),
        ({"join_coverage": 0.5}, SERIES_OF_A_RANK + MORE_WHILE_LATE + MORE_WITHOUT_COVERAGE),
    ],
)
@pytest.mark.parametrize("never_together", [{"compute"}, {"forward", "backward"}])
def test_rank_stays_within_its_series_budget(
    never_together: set[str], changes: dict[str, Any], most: int
) -> None:
    """A rank costs a Prometheus at most 48 series, and 11 of its host, with all that can occur."""
    rank = busiest(never_together, **changes)
    of_rank = lines(store(rank), rank, of_host=False)
    of_its_host = lines(store(rank), rank, of_host=True)

    assert len(of_its_host) == (0 if rank.finished else MORE_OF_ITS_HOST)
    assert 2 * len(rank.stage_seconds) < len(of_rank) <= most
    for name in ("rankskew_rank_numa_local", "rankskew_rank_slurm_info"):
        assert any(name in line for line in of_rank) is not rank.finished


def write_golden(path: Path = GOLDEN) -> None:
    """Rewrite the fixture: python -m tests.exporter.collectors.rank.test_resources."""
    registry = CollectorRegistry()
    registry.register(RankResourcesCollector(store(snapshot(), COMPLETE)))
    path.write_bytes(generate_latest(registry))


if __name__ == "__main__":
    write_golden()
