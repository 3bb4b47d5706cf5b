"""What a rank reports, and what its node knows of it without a probe, is exposed as documented.

No reading is no series.
"""

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.causes.model import Cause
from exporter.cgroups import Cgroup
from exporter.collectors.gpu.devices import GpuProcessesCollector
from exporter.collectors.gpu.faults import GpuFaultsCollector
from exporter.collectors.rank.gpus import RankGpusCollector
from exporter.collectors.rank.host import RankHostCollector
from exporter.collectors.rank.jobs import JobsCollector
from exporter.collectors.rank.late_causes import LateCausesCollector
from exporter.collectors.rank.late_ranks import LateLinesCollector, LateRanksCollector
from exporter.collectors.rank.ranks import (
    RankEventsCollector,
    RankResourcesCollector,
    RanksCollector,
)
from exporter.evidence.late_causes import LateCauses, RankPlace
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes import rank_cost
from exporter.processes.host_watch import HostWatch
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from rank_probe.judge.verdict import Together
from rank_probe.wire.snapshot import Snapshot
from rank_probe.wire.stages import STAGES
from tests.exporter.collectors.host import expose, page, series, shown, write
from tests.exporter.fake_proc import FakeProc, process, torchrun
from tests.exporter.node import Clock, node
from tests.exporter.running import ROOT, promtool_check_metrics
from tests.exporter.snapshots import CHANGE, LATE, late, snapshot, verdict

GOLDEN = ROOT / "tests" / "fixtures" / "exporter" / "ranks.txt"
INIT = {"number": 1, "event": "init", "began_timestamp_seconds": 1_000.0, "seconds": 4.0}
SAVE = {"number": 2, "event": "checkpoint", "began_timestamp_seconds": 1_030.0, "seconds": None}
# Two sets of a stage with nothing in common: the larger is shown, which the judge tells first.
TOGETHER = (
    Together("data", 9, 70.0),
    Together("data", 8, 40.0, in_common="rack r1"),
    Together("data", 5, 20.0),
)
SAVES = late(rank=3, kind="duty", stage="checkpoint", every_steps=25, pause_seconds=1.02)
# Of a rank that pauses, one that is late, and of the job, which has changed.
VERDICT = verdict(
    late=(LATE, SAVES),
    together=TOGETHER,
    changes=(replace(CHANGE, gpus=0.8, in_common='rack "r\\12"'), replace(CHANGE, stage="sync")),
    absent=1,
)
SLOW_MOUNT = Cause("input", "nfs", 1.0, "x" * 300, "")
HOT = Cause(
    "slow_device",
    "clocks",
    0.9,
    "its SM clock is 1.41 GHz, its peers' 1.95: too hot",
    "`nvidia-smi -q -i UUID` on NODE",
    "sm_clock_hertz",
    1.41e9,
    1.95e9,
)
FINISHED = snapshot(rank=1, finished=True, stage="other", last_step_timestamp_seconds=1_059.0)
RESOURCES: dict[str, Any] = {
    "samples": 6_400,
    "tokens": 819_200,
    "padding_tokens": 40_960,
    "gc_pause_seconds": 0.75,
    "cuda_memory_allocated_bytes": 2**33,
    "cuda_alloc_retries": 0,
}
# The stages that can occur together, and those in which a rank can be late.
TOGETHER_STAGES = [stage for stage in STAGES if stage != "compute"]
OWN = [stage for stage in TOGETHER_STAGES if stage != "sync"]
BUSY = snapshot(
    rank=2,
    pid=20,
    **RESOURCES,
    verdict=VERDICT,
    verdict_age_seconds=2.0,
    join_coverage=0.75,
    late_lines=[
        {"stage": "data", "place": "Corpus.__next__ (corpus.py:41)", "share": 0.75},
        {"stage": "data", "place": "parse (corpus.py:70)", "share": 0.25},
    ],
    lifecycle_events=[INIT],
)
# A rank that has all that can occur together.
COMPLETE = snapshot(
    rank=3,
    **RESOURCES,
    peer_group="stage-1",
    attempt=2,
    last_step_timestamp_seconds=1_060.25,
    probe_errors=1,
    push_failures=2,
    stage_seconds=dict.fromkeys(TOGETHER_STAGES, 12.5),
    stage_host_seconds=dict.fromkeys(TOGETHER_STAGES, 13.0),
    dropped_steps=4,
    level="detail",
    stage_elapsed_seconds=12.5,
    wait_caused_seconds=dict.fromkeys(OWN, 1.25) | {"forward": 0.0},
    group_wait_seconds=0.5,
    joined_seconds=37.5,
    join_coverage=0.75,
    rank_info={"local_rank": "3", "node_rank": "0", "gpu_uuid": "GPU-3", "clock": "cuda"},
    runtime_info={"torch": "2.13.0", "python": "3.11.7", "backend": "nccl", "probe": "0.1.0"},
    # What ended last wins over what began after it; one that goes on is not over.
    lifecycle_events=[INIT, SAVE],
)


SERIES_OF_A_RANK = 48


def test_page_of_a_job_is_the_golden_one() -> None:
    """Four ranks, bare, finished, late and complete, on a node with two GPUs that are not well.

    A rank's events, lines and late sets cost one series each. A text that is long is cut: the name
    of a mount is somebody else's. RANKSKEW_WRITE_FIXTURES=1 writes the page instead.
    """
    store, wall = store_of(snapshot(), FINISHED, BUSY, COMPLETE), Clock(1_700_000_000.0)
    gpu = GpuSample(0, up=True, uuid="GPU-a", numa_node=0, cpu_affinity=(1, 2))
    nvml = node(
        replace(gpu, row_remap_pending=1, processes=(GpuProcess(20), GpuProcess(404))),
        replace(gpu, index=1, uuid="GPU-b", recovery_action=4, processes=(GpuProcess(30),)),
    )
    seen = {20: process(20, torchrun(2)), 30: process(30, {}), 404: process(404, {})}
    join, jobs, causes = RankJoin(nvml, lambda: seen, store), NodeJobs(store), LateCauses()
    causes.take(("llama", 2), HOT, RankPlace("all", "gpu-12", "0", "GPU-a", "20"), 0.0, 60.0)
    faults = GpuFaultsCollector(join, store, nvml, ExpectedGpus(), Thresholds(), "gpu-12")
    text = page(
        RanksCollector(store),
        RankResourcesCollector(store),
        RankEventsCollector(store),
        JobsCollector(jobs, wall, lambda job, change: {"forward": SLOW_MOUNT}.get(change.stage)),
        LateRanksCollector(jobs, "gpu-12", wall),
        LateCausesCollector(causes),
        LateLinesCollector(store),
        RankGpusCollector(join),
        GpuProcessesCollector(join),
        faults,
    )
    if os.environ.get("RANKSKEW_WRITE_FIXTURES") == "1":
        GOLDEN.write_text(text)

    assert text == GOLDEN.read_text()
    ranks = Counter(re.findall(r'[{,]rank="(\d)"', "\n".join(series(text))))
    assert 40 < max(ranks.values()) <= SERIES_OF_A_RANK
    assert promtool_check_metrics(text).returncode == 0


def store_of(*snapshots: Snapshot) -> RankStore:
    held = RankStore(clock=lambda: 2_000.0)
    for each in snapshots:
        held.put(each)
    return held


BEGAN: dict[str, Any] = {
    "started_timestamp_seconds": 1_000.0,
    "heartbeat_timestamp_seconds": 1_060.0,
}
NO_STEP, STARTING = snapshot(steps=0, **BEGAN), "rank_starting_seconds"
ELAPSED, LAST_STEP = "stage_elapsed_seconds", "last_step_timestamp_seconds"
BEATS, SPENT = "heartbeat_timestamp_seconds", "stage_seconds_total"
SHORTLY = snapshot(stage_elapsed_seconds=2.0, **BEGAN)


@pytest.mark.parametrize(
    ("held", "there", "absent"),
    [
        # No sync measured and no step done yet means no series, never 0.
        (snapshot(), BEATS, f"{LAST_STEP} rank_finished group_wait_seconds_total"),
        # After a clean end none is left that an alert on silence could see age.
        (FINISHED, "rank_finished", f"{BEATS} {ELAPSED} {STARTING}"),
        # A probe that is off keeps its heartbeat, and nothing that looks like a hang.
        (replace(COMPLETE, level="off", steps=0), BEATS, f"{LAST_STEP} {ELAPSED} {STARTING}"),
        # The stage of a rank that steps is another at each scrape: it shows once it lasts 10 s. The
        # culprit of a hang may go from stage to stage: it shows while the job stands.
        (snapshot(stage_elapsed_seconds=9.9), SPENT, ELAPSED),
        (snapshot(stage_elapsed_seconds=10.0), ELAPSED, STARTING),
        (replace(SHORTLY, last_step_timestamp_seconds=1_031.0), SPENT, ELAPSED),
        (replace(SHORTLY, last_step_timestamp_seconds=1_030.0), ELAPSED, STARTING),
        # Who waits for a job to start is known without counters of all ranks: from the age of its
        # process.
        (NO_STEP, f'{STARTING}{{job_id="llama",peer_group="all",rank="0"}} 60.0', LAST_STEP),
        # Typed fields are the snapshot's, whatever the text beside says.
        (replace(NO_STEP, rank_info={"world_size": "9"}), "rank_info", 'world_size="9"'),
    ],
)
def test_what_would_mislead_is_absent(held: Snapshot, there: str, absent: str) -> None:
    found = "\n".join(shown(RanksCollector(store_of(held))))

    assert f"rankskew_{there}" in found
    assert [name for name in absent.split() if name in found] == []


WHO = 'job_id="llama",peer_group="all",rank="0"'


def of_rank_0(name: str, on: dict[str, Any] | None = None, **fields: Any) -> list[str]:
    """Return the series *name* of rank 0, a process with *fields*, on a GPU with those of *on*."""
    gpu = GpuSample(0, up=True, processes=(GpuProcess(10),), **(on or {}))
    seen = {10: process(10, **{"environment": torchrun(0), **fields})}
    collector = RankGpusCollector(RankJoin(node(gpu), lambda: seen, RankStore()))
    return [line.removeprefix("rankskew_") for line in shown(collector, f"rankskew_{name}")]


UUIDS = ",".join(f"GPU-{index}a1b2c3d-0000-1111-2222-333344445555" for index in range(2))


@pytest.mark.parametrize(
    ("variables", "visible", "order"),
    [
        ({"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "all"}, "", ""),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "all", "PCI_BUS_ID"),
        ({"CUDA_VISIBLE_DEVICES": UUIDS}, "GPU-0a1b2c3d,GPU-1a1b2c3d", ""),
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
        ({0, 1}, {"numa_node": 0, "cpu_affinity": (1, 2, 3)}, 0.5),
        # A virtual machine that hides its NUMA nodes is not called local.
        ({0}, {"cpu_affinity": (0, 1)}, None),
        (None, {"numa_node": 0, "cpu_affinity": (0, 1)}, None),
    ],
)
def test_numa_locality_is_the_share_of_the_ranks_cpus(
    cpus: set[int] | None, near: dict[str, Any], share: float | None
) -> None:
    lines = of_rank_0("rank_numa_local", near, cpus=cpus and frozenset(cpus))

    assert lines == ([] if share is None else [f"rank_numa_local{{{WHO}}} {share}"])


POD = {"pod_uid": "12345678-9abc-def0-1234-56789abcdef0", "container_id": "c" * 64}
IN_POD = Cgroup(**POD)
BY_DOWNWARD_API = {"POD_NAME": "p", "POD_NAMESPACE": "n", "HOSTNAME": "h"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_USER": "ada"}
SLURM |= {"SLURM_STEP_ID": "2", "RANKSKEW_JOB_ID": "llama"}
BY_SLURM = {"slurm_job_id": "7", "slurm_step_id": "2", "partition": "gpu", "user": "ada"}


# Of a rank: its cgroup, whether its host name is its own, its environment, and what is told.
@pytest.mark.parametrize(
    ("cgroup", "own_hostname", "variables", "told"),
    [
        # The cgroup identifies pod and container, the environment names them; a node is no pod.
        (IN_POD, True, BY_DOWNWARD_API, POD | {"namespace": "n", "pod": "p"}),
        (IN_POD, True, {"HOSTNAME": "llama-0"}, POD | {"namespace": "", "pod": "llama-0"}),
        (IN_POD, False, {"HOSTNAME": "node-7"}, POD | {"namespace": "", "pod": ""}),
        # The cgroup, which Slurm made, is believed before the environment.
        (Cgroup(slurm_job="8"), True, SLURM, BY_SLURM | {"slurm_job_id": "8"}),
        (Cgroup(pod_uid="inside of a pod"), True, SLURM, BY_SLURM),
    ],
)
def test_pod_or_slurm_job_is_told(
    cgroup: Cgroup, own_hostname: bool | None, variables: dict[str, str], told: dict[str, str]
) -> None:
    """Never both, so that a rank stays within its budget."""
    environment = torchrun(0, **variables)
    (line,) = of_rank_0(
        "rank_", environment=environment, cgroup=cgroup, has_own_hostname=own_hostname
    )
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))

    assert line.startswith("rank_pod_info" if "pod" in told else "rank_slurm_info")
    assert labels == told | {"job_id": "llama", "peer_group": "all", "rank": "0"}


def split(name: str, main: float, workers: float) -> list[str]:
    labels = 'job_id="llama",peer_group="all",process="{}",rank="0"'
    values = {"main": main, "workers": workers}
    return [f"{name}{{{labels.format(of)}}} {value}" for of, value in values.items()]


def test_cost_of_a_rank_to_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In base units; CPU and run queue of the workers apart, everything else as a sum.

    What cannot be read has no series: a process in another namespace, io without the right to it.
    A scrape tells the watch who is there, and reads no file; a rank that has ended since the look
    has no series.
    """
    monkeypatch.setattr(rank_cost, "SATURATED_SECONDS", 0.0)
    fake = FakeProc(tmp_path / "proc")
    watch = HostWatch(fake.path, tmp_path / "sys")
    gpu = GpuSample(0, up=True, uuid="GPU-0", processes=(GpuProcess(10),))
    rank = process(10, torchrun(0), start_ticks=1000)
    join = RankJoin(node(gpu), lambda: {10: rank}, RankStore())
    collector, none = RankHostCollector(join, RankStore(), watch), ["processes_left_out 0.0"]

    def found() -> list[str]:
        return [line.removeprefix("rankskew_rank_") for line in shown(collector)]

    def look() -> list[str]:
        expose(collector)
        watch.look()
        return found()

    assert look() == none
    fake.use(10, cpu=150, faults=3)
    assert look() == [*split("cpu_seconds_total", 1.5, 0.0), f"workers{{{WHO}}} 0.0", *none]

    fake.use(10, cpu=150, faults=3, read=4096, run_queue=10**9)
    fake.use(11, parent=10, cpu=900, read=4096, run_queue=3 * 10**9)
    write(fake.path / "10" / "cgroup", "0::/pod\n")
    cgroup = tmp_path / "sys/fs/cgroup/pod"
    write(cgroup / "cpu.max", "100000 100000\n")
    write(cgroup / "cpu.stat", "nr_periods 100\nnr_throttled 25\nthrottled_usec 2500000\n")
    write(cgroup / "io.pressure", "some avg10=0.00 total=2000000\n")
    look()
    complete = [
        *split("cpu_seconds_total", 1.5, 9.0),
        *split("run_queue_seconds_total", 1.0, 3.0),
        f"read_bytes_total{{{WHO}}} 8192.0",
        f"workers{{{WHO}}} 1.0",
        f"cgroup_throttled_periods_total{{{WHO}}} 25.0",
        f'cgroup_pressure_seconds_total{{{WHO},resource="io"}} 2.0',
        *none,
    ]
    assert look() == complete

    with monkeypatch.context() as patch:
        for call in ("os.open", "os.listdir", "pathlib.Path.open"):
            patch.setattr(call, None)
        assert found() == complete
    join.processes = dict
    assert found() == none
