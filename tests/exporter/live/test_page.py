"""The page's data as a whole: GPUs, jobs and ranks, always JSON, small, and cheap to serve."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from exporter.live.page import LiveView, PageNode
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.background import WatchHangs
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.web.static import page_files
from rank_probe.version import __version__
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.live.stepping import GPU, START, Node, served, stepped
from tests.exporter.nvml.fixed import FixedNvml, node
from tests.exporter.snapshots import CHANGE, late, snapshot, verdict


def test_node_without_ranks_has_no_jobs() -> None:
    """Before any report, the page has an empty list and draws nothing.

    What the store no longer holds is not shown; two pages that ask within a second get the same
    bytes, made once.
    """
    view = LiveView(NodeJobs(RankStore()))

    assert view.summary().jobs == []
    view.sample(START, START)
    assert served(view) == {
        "version": __version__,
        "host": "",
        "grafana_url": None,
        "timestamp_seconds": START,
        "window_seconds": 60.0,
        "gpus_visible": None,
        "jobs": [],
        "gpus": [],
    }
    assert view.json() is view.json()

    node = stepped()
    node.now += 4000
    node.view.sample(node.now, node.now)
    assert served(node.view)["jobs"] == []


@pytest.mark.parametrize("number", [0.0, 5e-324, 1e-310, 1e15])
def test_page_is_json_whatever_number_a_rank_reports(number: float) -> None:
    """No sum, mean or ratio of what is taken in is infinite or not a number."""
    node = Node(ranks=2)
    node.said = verdict(
        step_seconds=number,
        slowdown=number,
        gpus_lost={"persistent": number},
        late=(late(ratio=number, gpus={"data": number}, since_seconds=number),),
        changes=(replace(CHANGE, ratio=number, since_seconds=number),),
    )
    for _ in range(90):
        node.step({"data": number, "sync": number})
        node.pass_second()

    json.dumps(served(node.view), allow_nan=False)


TROUBLED = replace(
    GPU,
    index=3,
    uuid="GPU-3",
    throttle_reasons=0x20 | 0x1,
    pcie_link_width=8,
    processes=(GpuProcess(10), GpuProcess(11)),
)


def page_of(node: PageNode | None, *held: Snapshot, store: RankStore | None = None) -> Any:
    """Return what the page gets from *node* when *held* were pushed."""
    store = store or RankStore(clock=lambda: 2_000.0)
    for each in held:
        store.put(each)
    view = LiveView(NodeJobs(store), node=node)
    view.sample(2_000.0, 1_700_000_000.0)
    return json.loads(view.json())


def page_with(nvml: FixedNvml, *processes: Process, held: tuple[Snapshot, ...] = ()) -> Any:
    """Return what the page gets from a node where *processes* run and *held* were pushed."""
    store = RankStore(clock=lambda: 2_000.0)
    join = RankJoin(nvml, lambda: {each.pid: each for each in processes}, store)
    return page_of(PageNode("gpu-12", "http://grafana", join), *held, store=store)


def test_gpu_is_shown_in_base_units_with_its_ranks() -> None:
    """A tile has the readings, why the clock is low, the link's width, strangers, and the ranks."""
    live = page_with(node(TROUBLED), process(10, torchrun(0)), process(11, {}, name="miner"))

    assert live["gpus"] == [
        {
            "gpu": 3,
            "gpu_uuid": "GPU-3",
            "name": "NVIDIA H100",
            "up": True,
            "utilization_ratio": 0.975,
            "memory_used_bytes": 60 * 10**9,
            "memory_total_bytes": 80 * 10**9,
            "temperature_celsius": 71,
            "power_watts": 654.321,
            "sm_clock_hertz": 1.98e9,
            "throttle_reasons": ["sw_thermal_slowdown"],
            "pcie_link_width": 8,
            "pcie_link_width_max": 16,
            "foreign_processes": 1,
            "ranks": [{"job_id": "llama", "rank": 0}],
        }
    ]
    assert (live["host"], live["grafana_url"]) == ("gpu-12", "http://grafana")
    # A lost GPU keeps its tile; nothing is made up for it.
    (gpu,) = page_with(node(GpuSample(0, up=False, uuid="GPU-0")))["gpus"]
    assert gpu["up"] is False
    assert gpu["utilization_ratio"] is gpu["power_watts"] is gpu["foreign_processes"] is None
    assert gpu["throttle_reasons"] == gpu["ranks"] == []


def test_job_without_the_probe_is_listed() -> None:
    """Processes that were started as ranks are a job, with a hint on how to start the probe."""
    (job,) = page_with(node(TROUBLED), process(10, torchrun(2)))["jobs"]
    (rank,) = job["ranks"]
    verdict = job["verdict"]

    assert (job["job_id"], job["probed"], job["world_size"]) == ("llama", False, 4)
    assert (verdict["state"], verdict["alert"]) == ("no_probe", None)
    assert verdict["runbook"] == "RankskewNotJudgeable"
    assert "1 of 4 ranks run on this node" in verdict["sentence"]
    assert "-m rank_probe train.py" in verdict["first_action"]
    assert (rank["rank"], rank["pid"], rank["host"], rank["gpu"]) == (2, 10, "gpu-12", 3)
    # A job of which only some ranks report is not complete, and the others are listed.
    processes = process(10, torchrun(0)), process(11, torchrun(1))
    (job,) = page_with(node(TROUBLED), *processes, held=(snapshot(pid=10),))["jobs"]
    assert job["verdict"]["state"] == "ranks_missing"
    assert job["verdict"]["sentence"] == "1 rank runs on this node without the probe."
    assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
    # GPUs alone are no job.
    assert page_with(node())["jobs"] == page_with(node(TROUBLED))["jobs"] == []


def test_rank_has_the_places_to_look_at() -> None:
    """Its GPU's index and the node's id of its process, not the pod's; without NVML the probe's."""
    inside = snapshot(pid=1, rank_info={"gpu_uuid": "GPU-3", "local_rank": "0"}, world_size=1)
    (job,) = page_with(node(TROUBLED), process(10, torchrun(0), namespace_pid=1), held=(inside,))[
        "jobs"
    ]
    (rank,) = job["ranks"]
    assert job["probed"] is True
    assert (rank["pid"], rank["host"], rank["gpu"], rank["local_rank"]) == (10, "gpu-12", 3, "0")

    (job,) = page_of(None, snapshot(pid=4711))["jobs"]
    assert (job["ranks"][0]["pid"], job["ranks"][0]["gpu"]) == (4711, None)


def hang() -> Mapping[int, Process]:
    raise WatchHangs("reading a process on a GPU in /proc hangs")


def test_page_stands_while_a_process_cannot_be_read() -> None:
    """The GPUs are shown without their ranks, and what the probes report is shown as ever."""
    live = page_of(PageNode(gpu_ranks=RankJoin(node(TROUBLED), hang, RankStore())), snapshot())

    assert [gpu["ranks"] for gpu in live["gpus"]] == [[]]
    assert [job["job_id"] for job in live["jobs"]] == ["llama"]


@pytest.mark.parametrize(
    ("file", "is_told"),
    [("/scratch/fr/rank_", True), ("/scratch/$(reboot)/rank_", False), ("rank_", False)],
)
def test_hang_points_to_the_dumps_that_torch_will_write(file: str, is_told: bool) -> None:
    """The process was started with their place; what a shell would read as more is not shown."""
    waits = {"stage": "sync", "stage_elapsed_seconds": 160.0, "last_step_timestamp_seconds": 900.0}
    rank = process(10, torchrun(0) | {"TORCH_FR_DUMP_TEMP_FILE": file})
    (job,) = page_with(node(TROUBLED), rank, held=(snapshot(rank=0, pid=10, **waits),))["jobs"]

    told = (
        "When a collective times out, torch writes a dump of each rank to /scratch/fr on its node: "
        "rankskew flight-recorder /scratch/fr"
    )
    assert job["verdict"]["state"] == "hung"
    assert job["verdict"]["details"] == ([told] if is_told else [])


def test_page_of_the_largest_node_is_small() -> None:
    """Its files and what it asks for once a second are under 200 kB: 64 ranks on 16 GPUs."""
    largest = Node(64, gpus=16)
    largest.run(60)
    live = largest.view.json()

    assert sum(len(each["ranks"]) for each in json.loads(live)["gpus"]) == 64
    assert sum(map(len, page_files().values())) + len(gzip.compress(live)) < 200_000
