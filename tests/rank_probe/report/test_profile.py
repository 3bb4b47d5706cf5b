"""A profile has the steps that are ordered, and harms neither training nor its own profiler."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import profiler as theirs
from torch.autograd import profiler

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.process.identity import Identity
from rank_probe.report import profile as module
from rank_probe.report.profile import Profile
from rank_probe.wire.snapshot import MOST_PROFILED_STEPS

ME = Identity("a/b", "all", rank=2, world_size=4, local_rank="2", node_rank="0", attempt=1)


class Rank:
    """A rank after two steps, whose every step multiplies as often as its number says."""

    def __init__(self, directory: Path) -> None:
        self.timeline = Timeline(automatic=False)
        self.woken = 0
        self.profile = Profile({"RANK_PROBE_TRACE": str(directory)}, self.timeline, self._wake)
        self.number = 0
        self.steps(2)

    def _wake(self) -> None:
        self.woken += 1

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.number += 1
            self.timeline.tape.note(events.ENTER | 0)
            for _ in range(self.number):
                torch.mm(torch.ones(2, 2), torch.ones(2, 2))
            self.timeline.tape.note(events.LEAVE)
            self.timeline.tape.note(events.STEP)

    def order(self, start: int, steps: int = 2) -> dict[str, str]:
        self.profile.look({"start": start, "steps": steps}, ME)
        return self.profile.said()

    def problem(self) -> str:
        self.profile.look(None, ME)
        assert failures.count == 0
        assert self.timeline.tape.follower is None
        assert not torch._C._autograd._profiler_enabled()
        return self.profile.said()["problem"]


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path / "traces")


def multiplications(path: str) -> int:
    document = json.loads(Path(path).read_text())
    return sum(each["name"] == "aten::mm" for each in document["traceEvents"])


def test_trace_has_the_steps_that_were_ordered(rank: Rank, tmp_path: Path) -> None:
    """Steps 5 and 6 and no other, in a file that the snapshot names; then nobody is told of steps.

    The same order again, as it comes until the exporter knows, is no other.
    """
    follower = rank.timeline.tape.follower
    assert rank.order(5) == {"start": "5", "path": "", "problem": ""}
    rank.steps(5)
    assert rank.woken == 1
    rank.profile.look({"start": 5, "steps": 2}, ME)

    said = rank.profile.said()
    assert said == {
        "start": "5",
        "path": str(tmp_path / "traces" / "a_b-1-2-step5.json"),
        "problem": "",
    }
    assert multiplications(said["path"]) == 5 + 6
    assert "rankskew: 2 steps from step 5 on, rank 2" in Path(said["path"]).read_text()
    rank.order(5)
    rank.steps(5)
    assert rank.profile.said() == said
    assert (rank.timeline.tape.follower, rank.problem()) == (follower, "")


def test_next_order_gets_a_trace_too(rank: Rank) -> None:
    """Also one that comes while an earlier one waits, which it replaces."""
    constructor = torch.autograd.profiler.profile.__init__
    rank.order(90)
    rank.order(5, 1)
    rank.steps(4)
    assert rank.problem() == ""
    assert torch.autograd.profiler.profile.__init__ is constructor
    rank.order(9, 1)
    rank.steps(4)

    assert rank.problem() == ""
    assert multiplications(rank.profile.said()["path"]) == 9


def test_device_is_told_of_each_event_meanwhile(rank: Rank) -> None:
    """The device's timeline misses nothing because of a profile."""
    heard: list[int] = []
    rank.timeline.tape.follower = heard.append
    rank.steps(1)
    before = len(heard)
    rank.order(5, 1)
    rank.steps(4)

    assert len(heard) == 5 * before
    assert rank.timeline.tape.follower == heard.append


@pytest.mark.parametrize(
    ("start", "steps", "problem"),
    [
        (3, 2, "step 3 was over when the rank heard of it"),
        (9, 0, "0 are not 1 to"),
        (9, MOST_PROFILED_STEPS + 1, "21 are not 1 to 20"),
    ],
)
def test_impossible_order_has_a_sentence(rank: Rank, start: int, steps: int, problem: str) -> None:
    """A step that is over, or too many of them."""
    rank.steps(1)
    rank.order(start, steps)
    rank.steps(1)

    assert problem in rank.problem()


@pytest.mark.parametrize("order", [{}, {"start": "x", "steps": 1}, {"start": 5}, [5], "5", None])
def test_answer_of_another_release_is_no_order(rank: Rank, order: object) -> None:
    rank.profile.look(order, ME)
    rank.steps(9)

    assert rank.profile.said() == {}
    assert rank.timeline.tape.follower is None


def test_profiler_of_the_script_wins(rank: Rank) -> None:
    """One that runs is left alone, and gets all its steps."""
    with profiler.profile() as running:
        rank.order(4)
        rank.steps(5)
    rank.profile.look(None, ME)

    assert "a profiler of its own" in rank.problem()
    assert (
        sum(each.name == "aten::mm" for each in running.function_events or ()) == 3 + 4 + 5 + 6 + 7
    )


def test_profiler_of_the_script_that_warms_up_wins(rank: Rank) -> None:
    """It is not on yet, but torch has only one."""
    ready: list[int] = []
    schedule = theirs.schedule(wait=0, warmup=4, active=1, repeat=1)
    with theirs.profile(schedule=schedule, on_trace_ready=lambda p: ready.append(p.step_num)) as p:
        rank.order(4, 1)
        for _ in range(6):
            rank.steps(1)
            p.step()

    assert "a profiler of its own" in rank.problem()
    assert ready == [5]


@pytest.mark.parametrize("name", ["_profiler_enabled", "profiler"])
def test_torch_that_does_not_tell_is_left_alone(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A later release may have other private names."""
    rank.order(4)
    with monkeypatch.context() as patch:
        patch.delattr(torch.autograd, name)
        rank.steps(4)

    assert rank.problem() == "this torch does not say whether the script has a profiler of its own"


@pytest.mark.parametrize("make", [profiler.profile, theirs.profile])
def test_profiler_that_the_script_starts_meanwhile_wins(
    rank: Rank, make: Callable[[], Any]
) -> None:
    """Ours ends before theirs begins, without a trace."""
    rank.order(4)
    rank.steps(2)
    assert rank.profile.is_running
    with make() as running:
        rank.steps(1)
    rank.steps(2)
    found = running.events() if make is theirs.profile else running.function_events

    assert rank.problem() == "the script started a profiler of its own"
    assert sum(each.name == "aten::mm" for each in found) == 5


def test_end_of_the_training_ends_the_profile(rank: Rank) -> None:
    rank.order(4, 9)
    rank.steps(3)
    rank.profile.give_up("the training ended first")

    assert rank.profile.said()["problem"] == "the training ended first"
    rank.steps(1)
    assert rank.problem() == "the training ended first"


def test_refusal_of_torch_has_a_sentence(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kineto may not start at all; training goes on."""

    def refuse(self: object) -> None:
        raise RuntimeError("kineto\nsays no")

    monkeypatch.setattr(profiler.profile, "__enter__", refuse)
    rank.order(4)
    rank.steps(4)

    assert rank.problem() == "torch's profiler does not start: kineto?says no"


def test_too_large_a_trace_is_dropped(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The disk is the node's."""
    monkeypatch.setattr(module, "MOST_MIB", 0)
    rank.order(4)
    rank.steps(4)

    assert rank.problem().endswith("over 0: order fewer steps")
    assert list((tmp_path / "traces").iterdir()) == []


def test_directory_that_cannot_be_made_has_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rank = Rank(tmp_path / "file" / "traces")
    rank.order(4)
    rank.steps(4)

    assert rank.problem().startswith("the trace cannot be written: ")
