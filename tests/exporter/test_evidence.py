"""Late ranks, and jobs that became slower, are explained from what is known here, steadily."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from exporter.causes.model import UNKNOWN, Cause, ThreadState
from exporter.evidence.late_causes import LateCauses, RankPlace
from rank_probe.judge.verdict import Change
from tests.exporter.evidence_node import FIRST_PID, FakeNode, FakeWorkers
from tests.exporter.snapshots import late, verdict

HOT, LOCKED = "slow_device clocks", "code lock"


def judged(*ranks: int, stage: str = "forward", **changes: Any) -> dict[str, Any]:
    """Return what ranks repeat while these are late."""
    known = {"since_seconds": 20.0, "peer_group": "all", "gpus": {stage: 1.0}, **changes}
    found = tuple(late(rank=rank, stage=stage, **known) for rank in ranks)
    return {"verdict": verdict(late=found), "verdict_age_seconds": 0.0}


def waiting(stage: str, state: str = "lock", share: float = 0.9) -> dict[str, Any]:
    """Return what a rank says whose thread is mostly in one state."""
    states = [{"stage": stage, "state": state, "share": share, "place": "f (a.py:1)"}]
    return {**judged(2, stage=stage), "thread_states": states}


def hot(gpus: int = 4, ranks: int = 4, seconds: int = 60) -> FakeNode:
    """Return a node that has run for so long; the GPU of rank 2 has a lower clock than others."""
    found = FakeNode(ranks, gpus)
    found.gpus[2:3] = [replace(gpu, sm_clock_megahertz=1_400) for gpu in found.gpus[2:3]]
    found.run(seconds)
    return found


def fine(workers: FakeWorkers | None = None, **stages: float) -> FakeNode:
    """Return a node on which nothing is wrong."""
    found = FakeNode(4, 4, workers)
    found.stages = stages or found.stages
    found.run(60)
    return found


def told(found: FakeNode, seconds: int, **changes: Any) -> list[str]:
    """Return the cause of rank 2, empty without one, after each of these seconds."""
    said = []
    for _ in range(seconds):
        found.run(1, **(changes or judged(2)))
        cause = found.causes.of("llama", 2)
        said.append("" if cause is None else f"{cause.cause} {cause.detail}".strip())
    return said


def action(found: FakeNode) -> str:
    """Return what to do first about rank 2."""
    return found.causes.all()["llama", 2].cause.first_action


def test_late_rank_is_explained_where_it_is() -> None:
    """With its GPU, its process and its node; nobody else has a cause, and it none afterwards.

    Without a GPU, and where its process is hidden, by what it says itself.
    """
    found = hot()
    assert (found.causes.all(), found.host.hurried) == ({}, False)
    found.run(3, **judged(2, 9))
    causes = found.causes.all()
    assert causes.keys() == {("llama", 2)}
    assert causes["llama", 2].place == RankPlace("all", "node-7", "2", "GPU-2", str(FIRST_PID + 2))
    assert re.match("`nvidia-smi -q -i GPU-2 .* on node-7", action(found))
    assert found.host.hurried
    found.run(1, **judged())
    assert (found.causes.all(), found.host.hurried) == ({}, False)

    for kind, is_told in (("pauses", True), ("node", True), ("mild", False)):
        found = hot()
        found.run(3, **judged(2, kind=kind))
        assert bool(found.causes.all()) is is_told  # What a healthy job has needs no cause.

    found = FakeNode(4, 0)
    found.host.hidden = {2}
    found.ranks[2] = replace(found.ranks[2], pid=7, rank_info={})
    found.run(60)
    assert told(found, 3, **waiting("forward")) == [LOCKED] * 3
    assert found.causes.all()["llama", 2].place == RankPlace("all", "node-7", "", "", "7")
    assert "--pid 7`" in action(found)
    found.ranks[2] = replace(found.ranks[2], pid=8)  # Nobody is sent to a process that has ended.
    told(found, 2, **waiting("forward"))
    assert "--pid 8`" in action(found)


def test_evidence_is_of_the_time_since_the_onset() -> None:
    """What a GPU did before does not count; what its threads do comes along, as the rank says."""
    found = fine()
    found.gpus[2] = replace(found.gpus[2], sm_clock_megahertz=1_400)
    for second in range(20):
        states = waiting("forward", share=0.75)["thread_states"]
        found.run(1, **judged(2, since_seconds=float(second)), thread_states=states)
    cause = found.causes.of("llama", 2)

    assert cause is not None
    assert (cause.value, cause.peers_value) == pytest.approx((1.4e9, 1.9e9))
    assert [each.detail for each in cause.others] == ["lock"]
    assert "f (a.py:1)" in cause.others[0].sentence


def test_peers_of_the_join_come_before_those_of_the_node() -> None:
    """A figure that the join does not carry is still held against the ranks here."""
    for figure, is_told in (("sm_clock_hertz", False), ("gpu_power_watts", True)):
        as_low = {"peer_figures": {figure: [1.4e9, 1.4e9, 1.4e9]}}
        assert told(hot(), 3, **judged(2), **as_low)[-1] == (HOT if is_told else "")


@pytest.mark.parametrize(
    ("other", "also_late", "is_peer", "is_alone"),
    [
        pytest.param({}, (), True, False, id="healthy"),
        pytest.param(None, (), False, True, id="nobody"),
        pytest.param({}, (0, 1, 3), False, False, id="late too"),
        pytest.param({"peer_group": "pp1"}, (), False, False, id="of another part of the model"),
        pytest.param({"job_id": "other"}, (), False, True, id="of another job"),
        pytest.param({"finished": True}, (), False, False, id="finished"),
        pytest.param("silent", (), False, False, id="silent"),
    ],
)
def test_only_healthy_ranks_of_its_group_are_peers(
    other: Any, also_late: tuple[int, ...], is_peer: bool, is_alone: bool
) -> None:
    """Without another rank of its job, whatever the node suffers from may delay only this one."""
    for is_hot, cause, is_told in ((True, HOT, is_peer), (False, "cpu thermal", is_alone)):
        found = hot(seconds=0) if is_hot else FakeNode(4, 4)
        for rank in (0, 1, 3):
            if isinstance(other, dict):
                found.ranks[rank] = replace(found.ranks[rank], **other)
            if other is None:
                del found.ranks[rank]
        found.throttled_ratio = 0.0 if is_hot else 0.9
        found.run(60)
        if other == "silent":
            found.ranks = {2: found.ranks[2]}
        found.run(11)

        assert (told(found, 3, **judged(2, *also_late))[-1] == cause) is is_told


def restarted() -> FakeNode:
    found = fine()
    found.restart(2)
    return found


def without_loader() -> FakeNode:
    """Return a node whose ranks seem to read no batches."""
    return fine(other=0.1, forward=0.3, sync=0.6)


def sampled(*stages: str) -> dict[str, Any]:
    """Return what a rank says that is late in `other`, once its stack was seen in these stages."""
    lines = [{"stage": stage, "place": "f (a.py:1)", "share": 1.0} for stage in stages]
    return {**waiting("other"), "late_lines": lines}


LONG = judged(2, since_seconds=60.0)


@pytest.mark.parametrize(
    ("make", "changes", "earliest", "latest"),
    [
        pytest.param(hot, judged(2), 1, 1, id="at once"),
        # What its threads do alone would be half of the story.
        pytest.param(lambda: hot(seconds=0), judged(2), 4, 4, id="new rank"),
        # That its threads are looked at begins when it is known to be late.
        pytest.param(fine, judged(2), 11, 12, id="unknown"),
        pytest.param(fine, LONG, 11, 12, id="unknown for long"),
        # What its former process did is no evidence on this one.
        pytest.param(restarted, LONG, 10, 14, id="restarted"),
        # What is late in `other` may turn out to be late in `data` once its stack was sampled;
        # RANK_PROBE_STACKS=0 turns that off, and holds no page back for ever.
        pytest.param(without_loader, sampled(), 31, 32, id="no loader"),
        pytest.param(without_loader, sampled("other"), 1, 1, id="late in other"),
        pytest.param(without_loader, sampled("data"), 31, 32, id="may be late in data"),
        pytest.param(without_loader, sampled("other", "data"), 31, 32, id="in both"),
        pytest.param(without_loader, waiting("data"), 1, 1, id="late in data"),
        pytest.param(
            lambda: fine(data=0.1, other=0.1, sync=0.8), sampled(), 1, 1, id="other, with a loader"
        ),
    ],
)
def test_cause_is_told_once_it_is_sure(
    make: Callable[[], FakeNode], changes: dict[str, Any], earliest: int, latest: int
) -> None:
    """The first that is told goes to the pager, so it waits for what will be known in seconds."""
    said = told(make(), latest, **changes)

    assert [bool(each) for each in said[: earliest - 1]] == [False] * (earliest - 1)
    assert said[-1] != ""


def test_workers_are_told_once_they_were_seen() -> None:
    """For three seconds: the first that is told goes to the pager. Nothing better than busy comes.

    They may be another user's; where none is known, its name stays. And so the next time.
    """
    waits = waiting("data", "pipe")
    workers = FakeWorkers()
    found = fine(workers)
    assert told(found, 2, **waits) == ["", ""]
    workers.states = [ThreadState("data", "sleep", 1.0)]
    assert told(found, 1, **waits) == ["input worker_sleep"]
    assert "`py-spy dump --pid 88` of a worker; `pgrep -P 102`" in action(found)

    workers.states = [ThreadState("data", "running", 1.0)]
    assert told(fine(workers), 1, **waits) == ["input workers"]
    found = fine(FakeWorkers())
    assert told(found, 4, **waits) == [*[""] * 3, "input workers"]
    assert "--pid WORKER_PID`" in action(found)
    assert told(found, 6, **judged()) == [""] * 6
    assert told(found, 1, **waits) == [""]

    # What they run is known by the loader's name as well.
    found = FakeNode(4, 4)
    found.host.saturated = {0: 0, 1: 0, 3: 0}
    found.run(60)
    assert told(found, 1, **judged(2, stage="data"), loader="f (a.py:1)") == ["input workers"]
    assert "running `f (a.py:1)`" in found.causes.all()["llama", 2].cause.sentence


def test_push_of_what_its_threads_do_is_explained_at_once() -> None:
    """The first page of a rank without a cause waits for it. Whoever pushes more gets no more."""
    found = fine()
    assert told(found, 5)[-1] == ""
    found.push(**judged(2), thread_states=[])
    assert found.causes.all() == {}
    found.push(**waiting("forward"))
    assert found.causes.all().keys() == {("llama", 2)}

    found = fine()
    told(found, 5)
    found.push(**waiting("forward", share=0.1))
    found.push(**waiting("forward"))
    assert found.causes.all() == {}


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


CAUSES = {
    "busy": Cause("cpu", "run_queue", 0.8, "", ""),
    "throttled": Cause("cpu", "throttled", 0.8, "", ""),
    "hot": Cause("slow_device", "clocks", 0.8, "", ""),
    "gc": Cause("gc", "", 0.8, "", ""),
    "unknown": Cause(UNKNOWN, "", 0.0, "", ""),
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


def test_first_action_is_ready_to_be_run() -> None:
    """Words that contain a placeholder are left alone; what is not known says what to look up."""
    action = "`kill PID`: GPU (UUID) of its GPUs on NODE, PPID"
    for place, filled in (
        (HERE, "`kill 4711`: 3 (GPU-3f6d) of its GPUs on node-7, PPID"),
        (RankPlace(node="n\\1"), "`kill PID`: GPU (UUID) of its GPUs on n\\1, PPID"),
    ):
        causes = LateCauses()
        causes.take(RANK, Cause("cpu", "", 0.8, "", action), place, 0.0, 60.0)
        told = causes.of(*RANK)
        assert told is not None
        assert told.first_action == filled
