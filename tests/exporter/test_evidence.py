"""The exporter explains late ranks and slower jobs from its node's evidence, without flapping."""

import re
from dataclasses import replace
from typing import Any

import pytest

from exporter.causes.model import Cause, ThreadState
from exporter.evidence.late_causes import LateCauses, RankPlace
from rank_probe.judge.verdict import Change
from tests.exporter.evidence_node import FakeNode, FakeWorkers
from tests.exporter.live_node import FIRST_PID, rows
from tests.exporter.snapshots import late, verdict

HOT, LOCKED = "slow_device clocks", "code lock"
RANK = ("demo", 2)


def judged(*ranks: int, stage: str = "forward", **changes: Any) -> dict[str, Any]:
    """Return the verdict that every rank pushes while *ranks* are late."""
    known = {"since_seconds": 20.0, "gpus": {stage: 1.0}, **changes}
    return verdict(late=tuple(late(rank=rank, stage=stage, **known) for rank in ranks))


def doing(stage: str, state: str = "lock", share: float = 0.9) -> dict[str, Any]:
    """Return the snapshot field of ranks whose main thread is mostly in *state*."""
    found = {"stage": stage, "state": state, "share": share, "place": "f (a.py:1)"}
    return {"thread_states": [found]}


def fine(workers: FakeWorkers | None = None, **stages: float) -> FakeNode:
    """Return a healthy node after 30 seconds."""
    found = FakeNode(4, 4, workers)
    found.stages = stages or found.stages
    found.after(30)
    return found


def hot(seconds: int = 30) -> FakeNode:
    """Return a node after *seconds*; the GPU of rank 2 has a lower clock than the others."""
    found = FakeNode(4, 4)
    found.clock(1_400, 2)
    found.after(seconds)
    return found


def told(found: FakeNode, seconds: int, said: Any = None, **changes: Any) -> list[str]:
    """Return the cause of rank 2 after each of the next *seconds*; an empty string is none."""
    causes = []
    for _ in range(seconds):
        found.after(1, said or judged(2), **changes)
        cause = found.causes.of(*RANK)
        causes.append("" if cause is None else f"{cause.cause} {cause.detail}".strip())
    return causes


def action(found: FakeNode) -> str:
    """Return the first action for rank 2."""
    return found.causes.all()[RANK].cause.first_action


def test_late_rank_is_explained_where_it_is() -> None:
    """Only a late rank has a cause, with its node, GPU and process, and only while it is late.

    Without a GPU or a visible process, the rank's own snapshots explain it.
    """
    found = hot()
    assert (found.causes.all(), found.host.hurried) == ({}, False)
    found.after(3, judged(2, 9))
    causes = found.causes.all()
    assert causes.keys() == {RANK}
    assert causes[RANK].place == RankPlace("all", "gpu-12", "2", "GPU-2", str(FIRST_PID + 2))
    assert re.match("`nvidia-smi -q -i GPU-2 .* on gpu-12", action(found))
    assert found.host.hurried
    # An answer with figures names node and page; a late rank gets its cause at once, for its peers.
    found.after(1, judged(2, 9))
    here = {"node": "gpu-12", "page": "http://g:1/"}
    assert found.at[0] == here
    why = {"cause": "slow_device", "detail": "clocks", "first_action": action(found)}
    assert found.at[2].items() >= (here | why).items()
    found.after(1, judged())
    assert (found.causes.all(), found.host.hurried) == ({}, False)

    for kind, is_told in (("pauses", True), ("node", True), ("mild", False)):
        found = hot()
        found.after(3, judged(2, kind=kind))
        assert bool(found.causes.all()) is is_told  # Healthy jobs have mild delays too.

    found = FakeNode(4, 0)
    found.host.hidden = {2}
    found.change(2, pid=7, rank_info={"gpu_uuid": "$(id)"})
    found.after(30)
    assert told(found, 3, **doing("forward")) == [LOCKED] * 3
    assert found.causes.all()[RANK].place == RankPlace("all", "gpu-12", "", "", "7")
    assert "--pid 7`" in action(found)
    found.change(2, pid=8)  # The action must not name a process that has ended.
    told(found, 2)
    assert "--pid 8`" in action(found)


def test_evidence_is_of_the_time_since_the_onset() -> None:
    """Only what a GPU did since the onset counts; the rank's thread states are added to it."""
    found = fine()
    found.clock(1_400, 2)
    for second in range(20):
        found.after(1, judged(2, since_seconds=float(second)), **doing("forward", share=0.75))
    cause = found.causes.of(*RANK)

    assert cause is not None
    assert (cause.value, cause.peers_value) == pytest.approx((1.4e9, 1.9e9))
    assert [each.detail for each in cause.others] == ["lock"]
    assert "f (a.py:1)" in cause.others[0].sentence


def test_peers_of_the_join_come_before_those_of_the_node() -> None:
    """The join's peers are preferred; a figure it does not carry is compared on this node."""
    for figure, is_told in (("sm_clock_hertz", False), ("gpu_power_watts", True)):
        as_low = {"peer_figures": {figure: [1.4e9, 1.4e9, 1.4e9]}}
        assert told(hot(), 3, **as_low)[-1] == (HOT if is_told else "")


@pytest.mark.parametrize(
    ("others", "also_late", "cause"),
    [
        pytest.param({}, (), HOT, id="healthy"),
        pytest.param({}, (0, 1, 3), "", id="late too"),
        pytest.param({"peer_group": "pp1"}, (), "", id="of another part of the model"),
        pytest.param({"finished": True}, (), "", id="finished"),
        pytest.param("silent", (), "", id="silent"),
        pytest.param("none", (), "cpu thermal", id="none"),
        pytest.param({"job_id": "other"}, (), "cpu thermal", id="of another job"),
    ],
)
def test_only_healthy_ranks_of_its_group_are_peers(
    others: Any, also_late: tuple[int, ...], cause: str
) -> None:
    """A rank without another one of its job here may also be delayed by the node's own trouble."""
    found = hot(seconds=0)
    found.throttled_ratio = 0.9
    if isinstance(others, dict):
        found.change(0, 1, 3, **others)
    found.after(0 if others == "none" else 30)
    if isinstance(others, str):
        found.states = {2: found.states[2]}
    found.after(30 if others == "none" else 11)

    assert told(found, 3, judged(2, *also_late))[-1] == cause


def first(found: FakeNode, said: Any = None, **changes: Any) -> int:
    """Return the second in which rank 2 first has a cause."""
    return 1 + [each != "" for each in told(found, 40, said, **changes)].index(True)


def test_cause_is_told_once_it_is_sure() -> None:
    """The first cause goes to the pager, so it waits for evidence that is seconds away."""
    assert first(hot()) == 1
    # Thread states alone would be half of the story.
    assert first(hot(seconds=0)) == 4
    # Its threads are only looked at once it is known to be late.
    assert first(fine()) in (11, 12)
    # What the previous process did is no evidence about this one.
    restarted = fine()
    restarted.restart(2)
    assert 10 <= first(restarted, judged(2, since_seconds=60.0)) <= 14


def test_rank_that_is_late_in_other_may_be_late_in_data() -> None:
    """Without a loader, the cause waits for stack samples to exclude `data`, at most half a minute.

    The limit matters with RANK_PROBE_STACKS=0, which turns the samples off.
    """
    said = judged(2, stage="other")
    for stages, at_once in ((), False), (("other",), True), (("other", "data"), False):
        lines = [{"stage": stage, "place": "f (a.py:1)", "share": 1.0} for stage in stages]
        found = fine(other=0.05, forward=0.15, sync=0.3)
        second = first(found, said, late_lines=lines, **doing("other"))
        assert second in ([1] if at_once else [31, 32])
    assert first(fine(data=0.05, other=0.05, sync=0.4), said, **doing("other")) == 1


def test_workers_are_told_once_they_were_seen() -> None:
    """The first cause goes to the pager, so it waits up to three seconds until workers are seen.

    Busy ones end the wait; for another user's, `WORKER_PID` stays. Each incident waits anew.
    """
    said, waits = judged(2, stage="data"), doing("data", "pipe")
    workers = FakeWorkers()
    found = fine(workers)
    assert told(found, 2, said, **waits) == ["", ""]
    workers.states = [ThreadState("data", "sleep", 1.0)]
    assert told(found, 1, said) == ["input worker_sleep"]
    assert "`py-spy dump --pid 88` of a worker; `pgrep -P 102`" in action(found)

    workers.states = [ThreadState("data", "running", 1.0)]
    assert told(fine(workers), 1, said, **waits) == ["input workers"]
    found = fine(FakeWorkers())
    assert told(found, 4, said, **waits) == [*[""] * 3, "input workers"]
    assert "--pid WORKER_PID`" in action(found)
    assert told(found, 6, judged()) == [""] * 6
    assert told(found, 1, said) == [""]

    # The name of the loader also shows what they run.
    found = FakeNode(4, 4)
    found.host.saturated = {0: 0, 1: 0, 3: 0}
    found.after(30)
    assert told(found, 1, said, loader="f (a.py:1)") == ["input workers"]
    assert "running `f (a.py:1)`" in found.causes.all()[RANK].cause.sentence


def test_push_of_what_its_threads_do_is_explained_at_once() -> None:
    """Pushed thread states are explained at once, as a page waits, but once between two looks."""
    for pushes in ([doing("forward")], [doing("forward", share=0.1), doing("forward")]):
        found = fine()
        assert told(found, 5)[-1] == ""
        found.push()
        assert found.causes.all() == {}
        for each in pushes:
            found.change(**each)
            found.push()
        assert (RANK in found.causes.all()) is (len(pushes) == 1)


def test_rank_is_told_its_figures() -> None:
    """A rank receives its figures of the last half minute, in six significant digits.

    A process that is new or restarted receives none until there are figures of its own.
    """
    found = FakeNode(2, 2)
    found.after(1)
    assert found.told == {0: [], 1: []}
    found.after(40)
    assert found.told[1][-1].items() >= {"sm_clock_hertz": 1.9e9, "data_seconds": 0.05}.items()

    before = len(found.told[0])
    found.restart(0)
    found.after(2)
    assert len(found.told[0]) == before
    found.after(10)
    assert len(found.told[0]) == before + 1
    assert found.service.pushed(replace(found.states[0], job_id="other")) == {}


# At 3/4 of the clock, everything takes 4/3 of the time.
SLOWER = Change("all", "forward", 4 / 3, since_seconds=60.0)


def throttled(before: int = 60, since: int = 60, megahertz: int = 1_425) -> FakeNode:
    """Return a node after *before* seconds, and *since* seconds with its GPUs at *megahertz*."""
    found = FakeNode(2, 2)
    found.after(before)
    found.clock(megahertz)
    found.after(since)
    return found


def change_told(found: FakeNode, change: Change = SLOWER) -> Cause | None:
    """Return the cause once the judge has reported *change* for a few seconds."""
    found.after(4, verdict(late=(), changes=(change,)))
    return found.changes.of("demo", change)


def test_clocks_of_all_gpus_explain_it_until_the_change_is_over() -> None:
    """The cause has both figures, from before the onset and since.

    Both stay after the onset has left the evidence, which covers the last half hour.
    """
    found = throttled()
    cause = change_told(found)
    assert cause is not None
    assert (cause.cause, cause.detail) == ("slow_device", "clocks")
    assert (cause.value, cause.peers_value) == pytest.approx((1.425e9, 1.9e9), rel=0.02)
    assert re.match(r"the GPUs' SM clock is 1\.4\d GHz, before 1\.\d\d", cause.sentence)
    assert cause.first_action == ""

    found.clock(1_800)
    found.after(60, verdict(late=(), changes=(replace(SLOWER, since_seconds=120.0),)))
    assert found.changes.of("demo", SLOWER) == cause
    found.after(4, judged())
    assert found.changes.of("demo", SLOWER) is None


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


# Findings, each `SECONDS CAUSE` | the cause reported after each; _ is the same as before.
STEADY = """
# A real cause is told at once, and replaces unknown at once.
0 unknown, 1 cpu | unknown at 0, cpu at 1
# A new sentence of the same cause after a minute: else an alert would be new each time.
0 cpu, 59 cpu, 60 cpu, 100 cpu, 120 cpu | cpu at 0, _, cpu at 60, _, cpu at 120
# Another cause, or detail, once it has lasted for a quarter of a minute.
0 cpu, 5 cpu/quota, 19.9 cpu/quota, 20 cpu/quota | cpu at 0, _, _, cpu/quota at 20
# What comes back begins to last anew, also if a third one was there in between.
0 cpu, 5 numa, 15 cpu, 16 numa, 30 numa, 31 numa | cpu at 0, _, _, _, _, numa at 31
0 cpu, 16 numa, 30 numa, 30.5 gc, 31 numa, 46 numa | cpu at 0, _, _, _, _, numa at 46
# A cause that is gone gives way to unknown after a minute: it is better than nothing.
0 cpu, 5 unknown, 64 unknown, 65 unknown | cpu at 0, _, _, unknown at 65
# A look that finds nothing takes nothing back.
0 cpu, 100 nothing | cpu at 0, _
"""


def told_of(findings: str, known: float = 60.0) -> list[str]:
    """Return the sentence reported after each finding, with *known* seconds of evidence."""
    causes, said = LateCauses(), []
    for finding in findings.split(", "):
        now, name = finding.split()
        cause, _, detail = name.partition("/")
        found = Cause(cause, detail, 0.8, f"{name} at {now}", "") if cause != "nothing" else None
        causes.take(RANK, found, RankPlace(), float(now), known)
        told = causes.of(*RANK)
        said.append("" if told is None else told.sentence)
    return said


@pytest.mark.parametrize(("findings", "told"), rows(STEADY))
def test_what_is_told_is_steady(findings: str, told: str) -> None:
    """The reported cause does not flap between two that are near a limit."""
    said = told_of(findings)
    new = ["_" if said[n] == said[n - 1] and n else each for n, each in enumerate(said)]

    assert ", ".join(new) == told
    # A real cause is reported at once, `unknown` only after ten seconds of evidence.
    assert told_of("0 gc", known=0.0) == ["gc at 0"]
    assert told_of("0 unknown", known=9.9) == [""]


def test_first_action_is_ready_to_be_run() -> None:
    """Known values replace whole-word placeholders; the others remain for the reader to look up."""
    action = "`kill PID`: GPU (UUID) of its GPUs on NODE, PPID"
    for place, filled in (
        (
            RankPlace("all", "node-7", "3", "GPU-3f6d", "4711"),
            "`kill 4711`: 3 (GPU-3f6d) of its GPUs on node-7, PPID",
        ),
        (RankPlace(node="n\\1"), "`kill PID`: GPU (UUID) of its GPUs on n\\1, PPID"),
    ):
        causes = LateCauses()
        causes.take(RANK, Cause("cpu", "", 0.8, "", action), place, 0.0, 60.0)
        assert causes.all()[RANK].cause.first_action == filled
