"""The timeline of a training loop: its accounts are right in random programs, and when it tells."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from rank_probe.api import _Stage
from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.boundaries import BEGIN, COMPLETE
from rank_probe.measure.tape import new_tape
from rank_probe.measure.timeline import Timeline
from rank_probe.measure.work_units import WorkUnits
from rank_probe.wire.stages import CHECKPOINT, DATA, EVAL, FORWARD, OTHER, SYNC
from tests.rank_probe.fakes import FakeTime
from tests.rank_probe.measure.noted_loop import MS, STEP, Job, milliseconds
from tests.rank_probe.torch_hooks.conftest import attached

pytestmark = pytest.mark.usefixtures("peers")

# A program is a list of moves; a move is its name and what happens inside it.
Move = tuple[str, Any]
BLOCKS = ("stage", "wait", "backward", "optimizer", "fetch", "try")


class TheirError(Exception):
    """Raised by the user's code."""


class InBackward(torch.autograd.Function):
    """Run a program while the autograd engine is at work."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[], None]) -> Tensor:
        ctx.run = run
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.run()
        return gradients[0], None


class InStep(torch.optim.SGD):
    """Run a program inside the optimizer's step."""

    inside: Callable[[], None]

    def step(self, closure: Any = None) -> Any:
        self.inside()


class InFetch(torch.utils.data.Dataset[int]):
    """Run a program while a batch is read."""

    def __init__(self, inside: Callable[[], None]) -> None:
        self._inside = inside

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        self._inside()
        return index


class Program:
    """Runs programs; *timeline* is None where nothing is timed."""

    def __init__(self, time: FakeTime, timeline: Timeline | None) -> None:
        self.time = time
        self.timeline = timeline
        self.done: list[str] = []

    def run(self, program: list[Move]) -> None:
        for name, inside in program:
            self.done.append(name)
            getattr(self, f"_{name}")(inside)

    def _note(self, code: int) -> None:
        if self.timeline is not None:
            self.timeline.tape.note(code)

    def _work(self, nanoseconds: int) -> None:
        self.time.pass_(nanoseconds)

    def _raise(self, _: None) -> None:
        raise TheirError

    def _complete(self, _: None) -> None:
        self._note(events.STEP)

    def _stage(self, inside: list[Move]) -> None:
        stage = (DATA, FORWARD, EVAL, CHECKPOINT)[len(inside) % 4]
        with _Stage(self.timeline, stage) if self.timeline else nullcontext():
            self.run(inside)

    def _wait(self, inside: list[Move]) -> None:
        self._note(events.WAIT)
        try:
            self.run(inside)
        finally:
            self._note(events.RELEASED)

    def _backward(self, inside: list[Move]) -> None:
        x = torch.ones(1, requires_grad=True)
        with torch.enable_grad():  # It may run within another backward.
            loss = InBackward.apply(x, lambda: self.run(inside)).sum()  # type: ignore[no-untyped-call]
        loss.backward()

    def _optimizer(self, inside: list[Move]) -> None:
        optimizer = InStep([torch.zeros(1, requires_grad=True)], lr=0.1)
        optimizer.inside = lambda: self.run(inside)
        optimizer.step()

    def _fetch(self, inside: list[Move]) -> None:
        for _ in DataLoader(InFetch(lambda: self.run(inside)), batch_size=None):
            self.time.pass_(1)

    def _try(self, inside: list[Move]) -> None:
        try:
            self.run(inside)
        except TheirError:
            self.done.append("caught")


def programs() -> st.SearchStrategy[list[Move]]:
    leaf = st.one_of(
        st.tuples(st.just("work"), st.integers(0, 10**9)),
        st.tuples(st.sampled_from(["raise", "complete"]), st.none()),
    )
    move = st.recursive(
        leaf,
        lambda inner: st.tuples(st.sampled_from(BLOCKS), st.lists(inner, max_size=3)),
        max_leaves=12,
    )
    return st.lists(move, max_size=6)


def outcome(job: Program, program: list[Move]) -> tuple[list[str], str | None]:
    """Run *program*; return what it did and the error that it ended with."""
    try:
        job.run(program)
    except TheirError as error:
        return job.done, repr(error)
    return job.done, None


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    program=programs(),
    automatic=st.booleans(),
    broken=st.sampled_from(["", "", "", "now", "follower", "measure"]),
)
@example(program=[("backward", [("wait", [("raise", None)])])], automatic=True, broken="")
def test_stages_add_up_and_errors_are_the_users(
    program: list[Move], automatic: bool, broken: str
) -> None:
    """In random programs no time is lost, and each ends as it does without the probe.

    So it does where a part of the probe raises at every event.
    """

    def ours(*_: object) -> int:
        raise RuntimeError("ours")

    expected = outcome(Program(FakeTime(), None), program)
    time = FakeTime()
    work = WorkUnits(ours if broken == "measure" else None)  # type: ignore[arg-type]
    timeline = Timeline(automatic=automatic, work=work, now=time)
    # Its own test has the thread that trains elsewhere; here all time is this thread's.
    timeline.follow_training = lambda: False  # type: ignore[method-assign]
    if broken == "now":
        timeline.tape = new_tape(ours)
    elif broken == "follower":
        timeline.tape.follower = ours
    enter_and_leave(timeline)
    started, before = time.nanoseconds, failures.count
    with attached(timeline):
        found = outcome(Program(time, timeline), program)
    enter_and_leave(timeline)
    totals, elapsed = timeline.steps.totals(), time.nanoseconds - started

    assert found == expected
    if broken:
        return
    assert failures.count == before
    assert sum(totals.spent) == elapsed
    assert sum(totals.nanoseconds) <= elapsed
    assert all(nanoseconds >= 0 for nanoseconds in totals.spent)
    if "raise" not in found[0]:  # An optimizer that raised is left at the next fetch.
        assert len(timeline.state.frames) == 0


def enter_and_leave(timeline: Timeline) -> None:
    """Begin or end what is counted."""
    timeline.tape.note(events.ENTER | OTHER)
    timeline.tape.note(events.LEAVE)


# ---- What the timeline tells of a loop, and when -------------------------------------------------


def test_timing_goes_on_after_a_pause_as_if_it_had_just_begun() -> None:
    """What was open when it was turned off is forgotten, and whole steps stay whole."""
    job = Job()
    job.run(*STEP, events.ENTER | EVAL)
    job.timeline.disable()
    job.time.pass_(500 * MS)
    job.run(events.LEAVE)
    job.timeline.enable()
    assert job.timeline.state.frames == ()
    job.run(*STEP, *STEP)
    job.timeline.finish()

    assert job.steps.totals().steps == 2
    assert milliseconds(job.steps.totals().nanoseconds) == {
        "optimizer": 1,
        "data": 10,
        "backward": 20,
        "sync": 4,
    }


class Device:
    def __init__(self) -> None:
        self.marks: list[int] = []

    def boundary(self, mark: int) -> None:
        self.marks.append(mark)


def test_device_hears_each_boundary_when_it_happens() -> None:
    """Its counting begins where the second step does."""
    job, device = Job(), Device()
    job.timeline.after_first_step = lambda: job.timeline.also_tell(device)
    job.run(*STEP, events.FETCH)
    assert device.marks == [DATA | BEGIN]
    job.run(events.FETCHED, events.WAIT, events.WAIT)  # Within a wait: no boundary.
    assert device.marks[1:] == [FORWARD, SYNC]
    job.run(events.RELEASED, events.WAITED, *STEP)
    assert not any(mark & COMPLETE for mark in device.marks)
    job.run(events.FETCH)

    assert device.marks[-1] == DATA | COMPLETE
