"""Each rank is joined to one GPU; what else is there, and not of its job, is foreign."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from exporter.cgroups import Cgroup
from exporter.listeners.peer import NAMESPACE_OF, UNKNOWN, Peer
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.foreign import foreign_processes
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin, RankOnGpu, join
from exporter.ranks.limits import RankLimits
from exporter.ranks.store import HeldRank, RankStore
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.node import NO_DRIVER, NO_SAMPLE, USER, FixedNvml, node
from tests.exporter.snapshots import snapshot


def gpu(index: int, processes: Mapping[int, int | None], **fields: Any) -> GpuSample:
    """A GPU with *processes*, the bytes of each by its id."""
    listed = tuple(GpuProcess(pid, used) for pid, used in processes.items())
    known = {"up": True, "uuid": f"GPU-{index}", "name": "H100", "processes": listed, **fields}
    return GpuSample(index, **known)


# The processes on each GPU of a node, by its number.
Gpus = Mapping[int, Mapping[int, int | None]]


def ranks(
    gpus: Gpus | FixedNvml,
    *processes: Process,
    held: Sequence[tuple[Snapshot, Peer | None]] = (),
    limits: RankLimits | None = None,
) -> list[RankOnGpu]:
    """Return the ranks of a node where *processes* are seen and *held* was pushed, by whom."""
    store = RankStore(limits, clock=lambda: 2_000.0)
    for each, owner in held:
        store.put(each, owner)
    nvml = gpus if isinstance(gpus, FixedNvml) else node(*(gpu(*each) for each in gpus.items()))
    return list(RankJoin(nvml, lambda: {each.pid: each for each in processes}, store).ranks())


def where(found: Sequence[RankOnGpu]) -> dict[int, tuple[str, str]]:
    """Return the GPU of each rank, and who said so."""
    assert len({(rank.job_id, rank.rank) for rank in found}) == len(found)
    return {rank.rank: (rank.gpu_uuid, rank.source) for rank in found}


def pushed(gpu_uuid: str = "", **changes: Any) -> Snapshot:
    """What the probe of a rank reports."""
    return snapshot(rank_info={"gpu_uuid": gpu_uuid, "local_rank": "0"}, **changes)


RANKS = tuple(process(10 + rank, torchrun(rank)) for rank in range(3))
AGAIN = process(20, torchrun(0))
CHILD = process(20, torchrun(0), ancestors=(10,))
STRANGER = process(20, torchrun(0), uid=1001)
OF_TWO_USERS = [RANKS[0], process(20, torchrun(1), uid=1001)]
IN_POD = process(10, torchrun(0), namespace_pid=7)
SPAWNED = [process(9, {}), process(10, {})]
ENDED = pushed("GPU-0", pid=10, finished=True)
BEYOND, TOO_LONG = torchrun(0, RANK="9" * 5000), torchrun(0, RANKSKEW_PEER_GROUP="x" * 129)


@pytest.mark.parametrize("nvml", [NO_DRIVER, NO_SAMPLE, {0: {}}, node(GpuSample(0, up=False))])
def test_node_where_nothing_runs_on_a_gpu_has_none(nvml: Gpus | FixedNvml) -> None:
    """No driver, no sample, no process, or a lost GPU: no rank, and no error."""
    assert ranks(nvml, process(7, torchrun(0))) == []


@pytest.mark.parametrize("environment", [None, {"RANK": "0"}, torchrun(4), BEYOND, TOO_LONG])
def test_process_that_says_no_valid_rank_is_none(environment: dict[str, str] | None) -> None:
    """Unreadable, no rank, outside of the world, or names no label may hold: not a rank."""
    assert ranks({0: {7: 1}}, process(7, environment)) == []


@pytest.mark.parametrize(
    ("gpus", "processes", "found"),
    [
        # Without the probe: who a process is says what torchrun set.
        ({0: {11: 9}, 1: {10: 9}}, RANKS[:2], {0: "GPU-1", 1: "GPU-0"}),
        # A rank that forgot to set its device leaves a context on GPU 0; its work is elsewhere.
        ({0: {10: 9, 11: 5}, 1: {11: 5}, 2: {11: 9}}, RANKS[:2], {0: "GPU-0", 1: "GPU-2"}),
        # If NVML does not report memory, the GPU with the local rank's number is taken.
        ({0: {12: None}, 2: {12: None}}, RANKS[2:], {2: "GPU-2"}),
        # A rank's own child on another GPU is not a second rank.
        ({0: {10: 9}, 1: {20: 1}}, [RANKS[0], CHILD], {0: "GPU-0"}),
        # A GPU that is shared by mistake can be counted.
        ({0: {10: 5, 11: 5}}, RANKS[:2], {0: "GPU-0", 1: "GPU-0"}),
        # Whoever was there first has the name; a later user's process cannot move the rank.
        ({0: {10: 1}, 1: {20: 10**12}}, [RANKS[0], STRANGER], {0: "GPU-0"}),
    ],
)
def test_rank_is_on_the_gpu_where_it_works(
    gpus: Gpus, processes: Sequence[Process], found: dict[int, str]
) -> None:
    on = {rank: (uuid, "environ") for rank, uuid in found.items()}

    assert where(ranks(gpus, *processes)) == on
    # Who knows a rank of theirs that has not said its GPU says no other.
    held = [(pushed("", pid=10), USER)] if 0 in found else []
    assert where(ranks(gpus, *processes, held=held)) == on


@pytest.mark.parametrize(
    ("gpus", "processes", "rank", "place"),
    [
        # The GPU that the probe names, and its process by the container's pid.
        ({0: {10: 9}, 1: {10: 1}}, [IN_POD], pushed("GPU-1", pid=7), ("GPU-1", "probe", 10)),
        # Without the node's process ids, or NVML, the probe's word is all that there is.
        ({}, [], pushed("GPU-x"), ("GPU-x", "probe", None)),
        # The process names the GPU until the probe does, at its first step, or where the probe's
        # name is that of a MIG instance, and not of a GPU whose readings are to be had.
        ({3: {10: 1}}, RANKS[:1], pushed("", pid=10), ("GPU-3", "environ", 10)),
        ({3: {10: 1}}, RANKS[:1], pushed("GPU-part", pid=10), ("GPU-3", "environ", 10)),
        # Ranks that mp.spawn started have no variables; the probe's process id finds them.
        ({0: {9: 1, 10: 1}}, SPAWNED, pushed("GPU-0", pid=10), ("GPU-0", "probe", 10)),
        # A snapshot of a process that has ended does not hide the one that trains now.
        ({1: {20: 1}}, [AGAIN], pushed("GPU-0", pid=10), ("GPU-1", "environ", 20)),
        # Of a finished rank neither the last report nor the rest of its process is training; a job
        # that restarts under its old name is on its GPU at once.
        ({0: {10: 1}}, RANKS[:1], ENDED, None),
        ({0: {10: 1}, 1: {20: 1}}, [RANKS[0], AGAIN], ENDED, ("GPU-1", "environ", 20)),
        # Nobody adds a rank to another user's job whose ranks report, nor takes one by its name.
        ({0: {10: 9}, 1: {20: 9}}, OF_TWO_USERS, pushed("GPU-0", pid=10), ("GPU-0", "probe", 10)),
        ({0: {20: 1}}, [STRANGER], pushed("", pid=20), None),
    ],
)
def test_probe_and_process_complete_one_another(
    gpus: Gpus,
    processes: Sequence[Process],
    rank: Snapshot,
    place: tuple[str, str, int | None] | None,
) -> None:
    """The rank is there once: where, who says so, and which process it is."""
    found = ranks(gpus, *processes, held=[(rank, USER)])

    pids = [each.process and each.process.pid for each in found]
    assert where(found) == ({0: place[:2]} if place else {})
    assert pids == ([place[2]] if place else [])


@pytest.mark.parametrize(
    ("job_id", "owner"), [("team/llama", USER), ("team/llama", None), ("mine", USER)]
)
def test_rank_whose_probe_has_a_better_name_is_there_once(job_id: str, owner: Peer | None) -> None:
    """It reads the pod's namespace, or the script names the job; the variables say neither."""
    rank = pushed("", pid=10, job_id=job_id)
    found = ranks({0: {10: 1}, 1: {11: 1}}, *RANKS[:2], held=[(rank, owner)])

    named = {(each.job_id, each.rank, each.gpu_uuid) for each in found}
    assert named == {("llama", 1, "GPU-1"), (job_id, 0, "GPU-0")}


@pytest.mark.parametrize(
    ("container", "is_theirs"),
    [("mine", False), ("theirs", True), (UNKNOWN, True), (f"{NAMESPACE_OF}7", True)],
)
def test_no_container_takes_anothers_rank(container: str, is_theirs: bool) -> None:
    """The process must be in the container that pushed, though both run as the same user.

    No cgroup names a PID namespace, nor that of the process.
    """
    theirs = process(10, torchrun(0), cgroup=Cgroup(container="theirs"))
    held = [(pushed("", pid=10), Peer(1000, container))]

    found = ranks({0: {10: 1}}, theirs, held=held)
    assert where(found) == ({0: ("GPU-0", "environ")} if is_theirs else {})


@pytest.mark.parametrize("limits", [{"ranks": 2}, {"jobs": 2}, {"peer_groups": 2}, {}])
def test_ranks_are_bounded_and_those_that_report_come_first(
    limits: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Forged environments cannot flood Prometheus or displace a rank; the log warns once."""
    jobs = [process(pid, torchrun(0, TORCHELASTIC_RUN_ID=f"a{pid}")) for pid in (11, 12, 13)]
    gpus: Gpus = {0: dict.fromkeys((10, 11, 12, 13), 1)}
    found = ranks(gpus, *jobs, held=[(pushed("GPU-0"), None)], limits=RankLimits(**limits))

    assert len(found) == (2 if limits else 4)
    assert "llama" in {rank.job_id for rank in found}
    assert len(caplog.messages) == (1 if limits else 0)


def test_ranks_are_found_again_when_any_source_says_something_else() -> None:
    """What is kept for all who ask is never old: GPUs, processes, and what the ranks report."""
    seen = {10: process(10, torchrun(0))}
    store = RankStore(clock=lambda: 2_000.0)
    nvml = node(gpu(0, {10: 1}), gpu(1, {}))
    found = RankJoin(nvml, lambda: seen, store)
    assert where(found.ranks()) == {0: ("GPU-0", "environ")}

    nvml.sample = node(gpu(0, {}), gpu(1, {10: 1})).sample
    assert where(found.ranks()) == {0: ("GPU-1", "environ")}
    seen[10] = process(10, torchrun(1))
    assert where(found.ranks()) == {1: ("GPU-1", "environ")}
    store.put(pushed("GPU-0", rank=3))
    assert where(found.ranks()) == {3: ("GPU-0", "probe"), 1: ("GPU-1", "environ")}
    kept = found.ranks()
    store.put(pushed("GPU-0", rank=3, sequence=2, steps=200))
    assert found.ranks() is kept  # Steps do not move it.
    store.put(pushed("GPU-1", rank=3, sequence=3, finished=True))
    assert where(found.ranks()) == {1: ("GPU-1", "environ")}


RANK = process(10, torchrun(0), ancestors=(5, 4))
CONTAINER = Cgroup(container_id="c" * 64)
SLURM = Cgroup(slurm_job="7")
LSF = Cgroup(lsf_job="7[2]")
UNNAMED = process(10, torchrun(0, TORCHELASTIC_RUN_ID="none"))


@pytest.mark.parametrize(
    ("processes", "count"),
    [
        # Where no job owns the GPU, nothing is foreign and nothing is not.
        ([], None),
        ([RANK], 0),
        # Neither by its environment nor by its place does it belong to the rank's job.
        ([RANK, process(20, {})], 1),
        ([RANK, process(20, torchrun(0, TORCHELASTIC_RUN_ID="other"))], 1),
        ([RANK, process(20, torchrun(1), uid=1001)], 1),
        ([RANK, process(20, {}, cgroup=CONTAINER)], 1),
        # Whatever one start of the job brings along, and the driver's own, is at home.
        ([RANK, process(20, torchrun(1))], 0),
        ([RANK, process(20, {"TORCHELASTIC_RUN_ID": "llama"})], 0),
        ([RANK, process(20, {}, ancestors=(10, 5, 4))], 0),
        ([RANK, process(4, {})], 0),
        *(
            ([process(10, torchrun(0), cgroup=cgroup), process(20, None, cgroup=cgroup)], 0)
            for cgroup in (CONTAINER, SLURM, LSF)
        ),
        ([RANK, process(20, None, uid=0, name="Xorg")], 0),
        # An unnamed run owns its ranks, but not every process without a job name.
        ([UNNAMED, process(20, {})], 1),
        ([UNNAMED, process(20, torchrun(1, TORCHELASTIC_RUN_ID="none"))], 0),
        # A GPU given out twice shows it: the job that came later is foreign.
        ([process(20, torchrun(0, TORCHELASTIC_RUN_ID="b")), RANK, process(11, torchrun(1))], 1),
    ],
)
def test_process_of_somebody_else_is_foreign(processes: list[Process], count: int | None) -> None:
    """By its environment, its parents, its cgroup; a list a little old makes none foreign."""
    seen = {each.pid: each for each in processes}
    for listed in (seen, *([] if count is None else [(*seen, 404)])):
        sample = gpu(0, dict.fromkeys(listed, 1))
        assert foreign_processes(sample, join([sample], seen, []), seen) == count


def test_where_no_process_can_be_seen_nothing_is_said() -> None:
    """Without the node's process ids the count is absent, not a comforting zero."""
    held = HeldRank(snapshot(rank_info={"gpu_uuid": "GPU-0"}), 0.0)

    for listed, count in (({404: 1}, None), ({}, 0)):
        sample = gpu(0, listed)
        assert foreign_processes(sample, join([sample], {}, [held]), {}) == count
