"""Late ranks, and jobs that became slower, are explained from what is known here, steadily."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from exporter.causes.model import UNKNOWN, Cause, ThreadState
from exporter.evidence.late_causes import LateCauses, RankPlace
from rank_probe.judge.verdict import Change
from tests.exporter.evidence.node import FIRST_PID, FakeExplain, FakeNode, FakeWorkers
from tests.exporter.snapshots import late, verdict

# Words that contain a placeholder are left alone.
HOT = Cause("slow_device", "clocks", 0.9, "hot", "`nvidia-smi -i UUID` on NODE: GPU of PID, PPID")
NOT_KNOWN = Cause(UNKNOWN, "", 0.0, "not known", "`py-spy dump --pid PID`")
WORKERS = Cause("input", "workers", 0.9, "it waits", "`py-spy dump --pid WORKER_PID` of PID")
SLEEPS = replace(WORKERS, detail="worker_sleep")


def judged(*ranks: int, **changes: Any) -> dict[str, Any]:
    """Return what ranks repeat while these are late."""
    known = {"stage": "forward", "since_seconds": 20.0, "peer_group": "all", **changes}
    found = tuple(late(rank=rank, **known) for rank in ranks)
    return {"verdict": verdict(late=found), "verdict_age_seconds": 0.0}


def node(
    ranks: int = 4,
    cause: Cause | None = HOT,
    gpus: int | None = None,
    workers: FakeWorkers | None = None,
) -> FakeNode:
    """Return a node that has run for a minute."""
    found = FakeNode(ranks, ranks if gpus is None else gpus, FakeExplain(cause), workers)
    found.run(60)
    return found


def told(found: FakeNode, seconds: int, **changes: Any) -> list[str]:
    """Return the first action of rank 2, empty without a cause, after each of these seconds."""
    said = []
    for _ in range(seconds):
        found.run(1, **(changes or judged(2)))
        cause = found.causes.of("llama", 2)
        said.append("" if cause is None else cause.first_action)
    return said


def test_late_rank_is_explained_where_it_is() -> None:
    """With its GPU, its process and its node; nobody else has a cause, and it none afterwards.

    Without a GPU, and where its process is hidden, by what it says itself.
    """
    found = node()
    assert (found.causes.all(), found.explain.cases, found.host.hurried) == ({}, [], False)
    found.run(3, **judged(2, 9))
    causes = found.causes.all()
    assert causes.keys() == {("llama", 2)}
    assert causes["llama", 2].place == RankPlace("all", "node-7", "2", "GPU-2", str(FIRST_PID + 2))
    action = "`nvidia-smi -i GPU-2` on node-7: 2 of 102, PPID"
    assert causes["llama", 2].cause.first_action == action
    assert found.host.hurried
    found.run(1, **judged())
    assert (found.causes.all(), found.host.hurried) == ({}, False)

    for kind, is_told in (("pauses", True), ("node", True), ("mild", False)):
        found = node()
        found.run(3, **judged(2, kind=kind))
        assert bool(found.causes.all()) is is_told  # What a healthy job has needs no cause.

    found = node(gpus=0)
    found.host.hidden = {2}
    found.ranks[2] = replace(found.ranks[2], pid=7, rank_info={})
    found.run(3, **judged(2))
    assert found.causes.all()["llama", 2].place == RankPlace("all", "node-7", "", "", "7")
    action = "`nvidia-smi -i UUID` on node-7: GPU of %d, PPID"
    assert told(found, 1) == [action % 7]
    found.ranks[2] = replace(found.ranks[2], pid=8)  # Nobody is sent to a process that has ended.
    assert told(found, 2)[-1] == action % 8


@pytest.mark.parametrize("loader", ["", "f (a.py:1)"])
def test_evidence_is_of_the_time_since_the_onset(loader: str) -> None:
    """What a GPU did before does not count; what its threads do comes along, as the rank says."""
    found = node()
    found.gpus[2] = replace(found.gpus[2], sm_clock_megahertz=1_400)
    state = {"stage": "forward", "state": "lock", "share": 0.5, "place": "f (a.py:1)"}
    for second in range(20):
        seen = {"thread_states": [state], "loader": loader}
        found.run(1, **judged(2, since_seconds=float(second)), **seen)
    late, evidence, peers = found.explain.cases[-1]

    assert (late.stage, late.kind, late.ratio) == ("forward", "persistent", 0.45)
    assert evidence.figures["sm_clock_hertz"] == pytest.approx(1.4e9)
    assert peers["sm_clock_hertz"].median == pytest.approx(1.9e9)
    assert evidence.states == [ThreadState("forward", "lock", 0.5, "f (a.py:1)")]
    assert evidence.worker_states == ()
    assert evidence.facts.get("saturated_workers", "") == loader


def test_peers_of_the_join_come_before_those_of_the_node() -> None:
    """A figure that the join does not carry is still held against the ranks here."""
    found = node()
    found.run(3, **judged(2), peer_figures={"sm_clock_hertz": [1.0, 2.0, 3.0]})
    _, _, peers = found.explain.cases[-1]

    assert peers["sm_clock_hertz"] == (1.0, 2.0, 3.0)
    assert peers["main_running_ratio"].median == pytest.approx(0.5)
    assert peers["checkpoint_seconds"].upper_third == 0.0  # A duty that they lack is known.


@pytest.mark.parametrize(
    ("other", "late", "is_alone"),
    [
        pytest.param(None, (0,), True, id="nobody"),
        pytest.param({}, (0, 1), False, id="late too"),
        pytest.param({"peer_group": "pp1"}, (0,), False, id="of another part of the model"),
        pytest.param({"job_id": "other"}, (0,), True, id="of another job"),
        pytest.param({"finished": True}, (0,), False, id="finished"),
        pytest.param("silent", (0,), False, id="silent"),
    ],
)
def test_only_healthy_ranks_of_its_group_are_peers(
    other: Any, late: tuple[int, ...], is_alone: bool
) -> None:
    """Without another rank of its job, whatever the node suffers from may delay only this one."""
    found = FakeNode(1 if other is None else 2, 2, FakeExplain(HOT))
    if isinstance(other, dict):
        found.ranks[1] = replace(found.ranks[1], **other)
    found.run(60)
    if other == "silent":
        del found.ranks[1]
    found.run(11)
    found.run(3, **judged(*late))

    assert found.causes.of("llama", 0) is not None
    assert all(peers == {} for _, _, peers in found.explain.cases)
    assert found.explain.cases[-1][0].is_alone is is_alone


def without_loader() -> FakeNode:
    """Return a node whose ranks seem to read no batches."""
    found = FakeNode(4, 4, FakeExplain(HOT))
    found.stages = {"other": 0.1, "forward": 0.3, "sync": 0.6}
    found.run(60)
    return found


def not_known() -> FakeNode:
    return node(cause=NOT_KNOWN)


def restarted() -> FakeNode:
    found = not_known()
    found.restart(2)
    return found


def sampled(*stages: str) -> dict[str, Any]:
    """Return what a rank says that is late in `other`, once its stack was seen in these stages."""
    lines = [{"stage": stage, "place": "f (a.py:1)", "share": 1.0} for stage in stages]
    return {**judged(2, stage="other"), "late_lines": lines}


@pytest.mark.parametrize(
    ("make", "changes", "earliest", "latest"),
    [
        pytest.param(node, judged(2), 1, 1, id="at once"),
        # What its threads do alone would be half of the story.
        pytest.param(lambda: FakeNode(4, 4, FakeExplain(HOT)), judged(2), 4, 4, id="new rank"),
        # That its threads are looked at begins when it is known to be late.
        pytest.param(not_known, judged(2), 11, 12, id="unknown"),
        pytest.param(not_known, judged(2, since_seconds=60.0), 11, 12, id="unknown for long"),
        # What its former process did is no evidence on this one.
        pytest.param(restarted, judged(2, since_seconds=60.0), 10, 14, id="restarted"),
        # What is late in `other` may turn out to be late in `data` once its stack was sampled;
        # RANK_PROBE_STACKS=0 turns that off, and holds no page back for ever.
        pytest.param(without_loader, sampled(), 31, 32, id="no loader"),
        pytest.param(without_loader, sampled("other"), 1, 1, id="late in other"),
        pytest.param(without_loader, sampled("data"), 31, 32, id="may be late in data"),
        pytest.param(without_loader, sampled("other", "data"), 31, 32, id="in both"),
        pytest.param(without_loader, judged(2, stage="data"), 1, 1, id="late in data"),
        pytest.param(node, sampled(), 1, 1, id="late in other, with a loader"),
    ],
)
def test_cause_is_told_once_it_is_sure(
    make: Callable[[], FakeNode], changes: dict[str, Any], earliest: int, latest: int
) -> None:
    """The first that is told goes to the pager, so it waits for what will be known in seconds."""
    said = told(make(), latest, **changes)

    assert [bool(each) for each in said[: earliest - 1]] == [False] * (earliest - 1)
    assert said[-1] != ""


BUSY_WORKERS = [ThreadState("data", "running", 1.0)]


def test_workers_are_told_once_they_were_seen() -> None:
    """For three seconds: the first that is told goes to the pager. Nothing better than busy comes.

    They may be another user's; where none is known, its name stays. And so the next time.
    """
    workers = FakeWorkers()
    found = node(cause=WORKERS, workers=workers)
    assert told(found, 2) == ["", ""]
    workers.states, found.explain.cause = [ThreadState("data", "sleep", 1.0)], SLEEPS
    assert told(found, 1) == ["`py-spy dump --pid 88` of 102"]
    assert found.causes.all()["llama", 2].cause.detail == "worker_sleep"

    workers.states = BUSY_WORKERS
    assert told(node(cause=WORKERS, workers=workers), 1) == ["`py-spy dump --pid 88` of 102"]
    found = node(cause=WORKERS, workers=FakeWorkers())
    assert told(found, 4) == [*[""] * 3, "`py-spy dump --pid WORKER_PID` of 102"]
    assert told(found, 6, **judged()) == [""] * 6
    assert told(found, 1) == [""]


def test_rank_without_a_cause_is_looked_at_each_second() -> None:
    """And at a push with what its threads do: its first page waits for it.

    Whoever pushes more often gets no more; once it has a cause, it is looked at like all others.
    """
    found = node(cause=None)
    told(found, 5)
    assert len(found.explain.cases) == 5
    state = {"stage": "forward", "state": "lock", "share": 1.0, "place": "f (a.py:1)"}
    for _ in range(2):
        found.push(**judged(2), thread_states=[state])
    assert len(found.explain.cases) == 6

    found.explain.cause = HOT
    found.service.look(found.clock() + 0.1)
    found.push(**judged(2), thread_states=[])
    assert found.causes.all() == {}
    found.push(**judged(2), thread_states=[state])
    assert found.causes.all().keys() == {("llama", 2)}
    before = len(found.explain.cases)
    told(found, 5)
    assert len(found.explain.cases) - before in (1, 2)


def test_rank_is_told_its_figures() -> None:
    """Those of the last half minute that have a place in the join, in six digits.

    Nothing of another process: none while it is new, or has restarted, until its own are made.
    """
    found = FakeNode(2, 2)
    found.run(1)
    assert found.told == {0: [], 1: []}
    found.gpus[1] = replace(found.gpus[1], sm_clock_megahertz=1_400)
    found.run(60)
    assert found.told[1][-1]["sm_clock_hertz"] == 1.4e9
    assert found.told[1][-1]["data_seconds"] == 0.05

    before = len(found.told[0])
    found.restart(0)
    found.run(2)
    assert len(found.told[0]) == before
    found.run(10)
    assert len(found.told[0]) == before + 1
    assert found.service.pushed(replace(found.ranks[0], job_id="other")) is None


# At three quarters of the clock all takes four thirds of the time.
SLOWER = Change("all", "forward", 4 / 3, since_seconds=60.0)


def changed(*changes: Change) -> dict[str, Any]:
    """Return what ranks repeat while the judge tells these."""
    return {"verdict": verdict(late=(), changes=changes), "verdict_age_seconds": 0.0}


def throttled(before: int = 120, since: int = 60, megahertz: int = 1_425) -> FakeNode:
    """Return a node whose GPUs have had a lower clock for so many seconds."""
    found = FakeNode(4, 4)
    found.run(before)
    found.gpus = [replace(gpu, sm_clock_megahertz=megahertz) for gpu in found.gpus]
    found.run(since)
    return found


def change_told(found: FakeNode, change: Change = SLOWER) -> Cause | None:
    """Return the cause once the judge has told *change* for a few seconds."""
    found.run(4, **changed(change))
    return found.changes.of("llama", change)


def test_clocks_of_all_gpus_explain_it_until_the_change_is_over() -> None:
    """With both figures, of before the onset and since.

    The onset leaves the memory of the evidence after half an hour; the figures stay as well.
    """
    found = throttled()
    cause = change_told(found)
    assert cause is not None
    assert (cause.cause, cause.detail) == ("slow_device", "clocks")
    assert (cause.value, cause.peers_value) == pytest.approx((1.425e9, 1.9e9), rel=0.01)
    assert re.fullmatch(r"the GPUs' SM clock is 1\.4\d GHz, before 1\.\d\d", cause.sentence)
    assert cause.first_action == ""

    found.gpus = [replace(gpu, sm_clock_megahertz=1_800) for gpu in found.gpus]
    found.run(60, **changed(replace(SLOWER, since_seconds=120.0)))
    assert found.changes.of("llama", SLOWER) == cause
    found.run(4, **changed())
    assert found.changes.of("llama", SLOWER) is None


@pytest.mark.parametrize(
    ("past", "change"),
    [
        pytest.param({"megahertz": 1_900}, {}, id="nothing is different"),
        pytest.param({}, {"ratio": 2.0}, id="more than the clock explains"),
        pytest.param({}, {"stage": "data"}, id="not on the GPU"),
        pytest.param({}, {"peer_group": "pp1"}, id="ranks of other nodes"),
        pytest.param({}, {"slower": 3}, id="some of the ranks"),
        pytest.param({"before": 0}, {}, id="an exporter without a past"),
        pytest.param({"since": 20}, {"since_seconds": 20.0}, id="too early"),
    ],
)
def test_node_that_cannot_tell_says_nothing(past: dict[str, int], change: dict[str, Any]) -> None:
    assert change_told(throttled(**past), replace(SLOWER, **change)) is None
    assert change_told(FakeNode(0, 0)) is None


RANK = ("llama", 2)
HERE = RankPlace("all", "node-7", "3", "GPU-3f6d", "4711")


def cause(name: str = "cpu", detail: str = "run_queue", sentence: str = "one") -> Cause:
    return Cause(name, detail, 0.8, sentence, "look")


CAUSES = {
    "busy": cause(),
    "throttled": cause(detail="throttled"),
    "hot": cause("slow_device", "clocks"),
    "gc": cause("gc", ""),
    "unknown": cause(UNKNOWN, ""),
    "nothing": None,
}


def told_of(*findings: str, known: float = 60.0) -> list[str]:
    """Return what is told after each `SECONDS CAUSE`, with so many seconds of evidence."""
    causes, said = LateCauses(), []
    for finding in findings:
        now, name = finding.split()
        found = CAUSES[name]
        new = None if found is None else replace(found, sentence=f"{name} at {now}")
        causes.take(RANK, new, HERE, float(now), known)
        told = causes.of(*RANK)
        said.append("" if told is None else told.sentence)
    return said


@pytest.mark.parametrize(
    ("findings", "told"),
    [
        # A real cause is told at once, and replaces unknown at once.
        ("0 unknown, 1 busy", "unknown at 0, busy at 1"),
        # A new sentence of the same cause after a minute: else an alert would be new each time.
        (
            "0 busy, 59 busy, 60 busy, 100 busy, 120 busy",
            "busy at 0, _, busy at 60, _, busy at 120",
        ),
        # Another cause, or detail, once it has lasted for a quarter of a minute.
        ("0 busy, 5 hot, 19.9 hot, 20 hot", "busy at 0, _, _, hot at 20"),
        ("0 busy, 5 throttled, 19.9 throttled, 20 throttled", "busy at 0, _, _, throttled at 20"),
        # What comes back begins to last anew, also if a third one was there in between.
        ("0 busy, 5 hot, 15 busy, 16 hot, 30 hot, 31 hot", "busy at 0, _, _, _, _, hot at 31"),
        ("0 busy, 16 hot, 30 hot, 30.5 gc, 31 hot, 46 hot", "busy at 0, _, _, _, _, hot at 46"),
        # A cause that is gone gives way to unknown after a minute: it is better than nothing.
        ("0 busy, 5 unknown, 64 unknown, 65 unknown", "busy at 0, _, _, unknown at 65"),
        # A look that finds nothing takes nothing back.
        ("0 busy, 100 nothing", "busy at 0, _"),
    ],
)
def test_what_is_told_is_steady(findings: str, told: str) -> None:
    """Two causes that are near a limit do not take turns; _ is what was told before."""
    said = told_of(*findings.split(", "))
    new = ["_" if said[n] == said[n - 1] and n else each for n, each in enumerate(said)]

    assert ", ".join(new) == told
    # A real cause however young the incident is; that none is known with ten seconds of evidence.
    assert told_of("0 hot", known=0.0) == ["hot at 0"]
    assert told_of("0 unknown", known=9.9) == [""]
