"""Tests of the timeline: whose events count, and what happens at once."""

import pytest

from rank_probe.measure import events
from rank_probe.measure.boundaries import BEGIN, COMPLETE, RELEASE, STAGE_BITS, UNCUT
from rank_probe.measure.loop_state import After, LoopState
from rank_probe.measure.tape import LONG
from rank_probe.measure.timeline import Timeline
from rank_probe.measure.transitions import after
from rank_probe.wire.stages import BACKWARD, DATA, EVAL, FORWARD, OTHER, STAGES, SYNC
from tests.rank_probe.fake_time import FakeTime, elsewhere

MS = 1_000_000


class Job:
    """One rank's loop as the hooks note it, in fake milliseconds."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.timeline = Timeline(automatic=True, now=self.time)
        self.note = self.timeline.tape.note

    def step(self, data: int = 5) -> None:
        self.note(events.FETCH)
        self.time.pass_(data * MS)
        self.note(events.FETCHED)
        self.note(events.BACKWARD_BEGINS)
        self.time.pass_(10 * MS)
        self.note(events.GRADIENTS_READY)
        self.time.pass_(2 * MS)
        self.note(events.BACKWARD_ENDED)
        self.note(events.OPTIMIZER_BEGINS)
        self.time.pass_(1 * MS)
        self.note(events.OPTIMIZER_ENDED)

    def milliseconds(self) -> dict[str, float]:
        """Whole steps only, stages that occurred."""
        totals = self.timeline.steps.totals().nanoseconds
        return {name: ns / MS for name, ns in zip(STAGES, totals, strict=True) if ns}


def test_other_threads_are_not_timed() -> None:
    """A checkpointing thread's collectives leave the training thread's clock alone."""
    job = Job()
    job.step()
    job.note(events.ENTER | DATA)
    before = (
        job.timeline.state,
        job.timeline.steps.totals().spent,
        job.timeline.steps.totals().steps,
    )
    codes = (events.ENTER | FORWARD, events.LEAVE, events.FETCH, events.OPTIMIZER_ENDED)
    elsewhere(*(lambda code=code: job.note(code) for code in codes), job.timeline.finish)
    after = (
        job.timeline.state,
        job.timeline.steps.totals().spent,
        job.timeline.steps.totals().steps,
    )

    assert after == before


def test_thread_that_trains_is_timed_from_its_beginning() -> None:
    """What the thread that started the probe had begun is forgotten, its time with it."""
    job = Job()
    job.note(events.ENTER | EVAL)
    job.time.pass_(500 * MS)
    elsewhere(job.timeline.follow_training, job.step, job.timeline.finish)

    assert job.timeline.state.frames == ()
    assert job.milliseconds() == {"data": 5, "backward": 10, "sync": 2}


def test_timing_goes_on_after_a_pause_as_if_it_had_just_begun() -> None:
    """What was open when it was turned off is forgotten, and whole steps stay whole."""
    job = Job()
    job.step()
    job.note(events.ENTER | EVAL)
    job.timeline.disable()
    job.time.pass_(500 * MS)
    job.note(events.LEAVE)
    job.timeline.enable()
    assert job.timeline.state.frames == ()
    job.step()
    job.step()
    job.timeline.finish()

    assert job.timeline.steps.totals().steps == 2
    assert job.milliseconds() == {"optimizer": 1, "data": 10, "backward": 20, "sync": 4}


def test_long_tape_is_added_up_without_a_pusher() -> None:
    """A very fast loop does not grow while nobody reads its totals."""
    job = Job()
    for _ in range(LONG // 7 + 1_000):
        job.step()

    assert len(job.timeline.tape.take()) < 2 * LONG


def test_first_step_is_reported_when_it_ends_and_only_once() -> None:
    """What is only known once training runs is read on the training thread, at that moment."""
    job, seen = Job(), []
    job.timeline.after_first_step = lambda: seen.append(job.timeline.steps.totals().steps)
    job.step()
    assert seen == []
    job.step()
    job.step()

    assert seen == [1]


class Device:
    def __init__(self) -> None:
        self.marks: list[int] = []

    def boundary(self, mark: int) -> None:
        self.marks.append(mark)


def test_device_hears_each_boundary_when_it_happens() -> None:
    """Its counting begins where the second step does."""
    job, device = Job(), Device()
    job.timeline.after_first_step = lambda: job.timeline.also_tell(device)
    job.step()
    job.note(events.FETCH)
    assert device.marks == [DATA | BEGIN]
    for code in (events.FETCHED, events.WAIT, events.WAIT):  # Within a wait: no boundary.
        job.note(code)
    assert device.marks[1:] == [FORWARD, SYNC]
    for code in (events.RELEASED, events.WAITED):
        job.note(code)
    job.step()
    assert not any(mark & COMPLETE for mark in device.marks)
    job.note(events.FETCH)

    assert device.marks[-1] == DATA | COMPLETE


def test_what_another_thread_finds_out_costs_the_device_no_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Peers that are found in the middle of an event count from then on, and so does the event."""
    job, device = Job(), Device()
    job.timeline.after_first_step = lambda: job.timeline.also_tell(device)
    job.step()
    for code in (events.FETCH, events.FETCHED):
        job.note(code)

    def meanwhile(state: LoopState, code: int) -> After:
        monkeypatch.undo()
        elsewhere(job.timeline.wait_for_peers)
        return after(state, code)

    monkeypatch.setattr("rank_probe.measure.interpreter.after", meanwhile)
    device.marks.clear()
    for code in (events.WAIT, events.RELEASED, events.BACKWARD_BEGINS, events.BACKWARD_ENDED):
        job.note(code)

    assert [mark & (STAGE_BITS | RELEASE | UNCUT) for mark in device.marks] == [
        *(SYNC, FORWARD | RELEASE, BACKWARD, OTHER | UNCUT)
    ]


def test_device_that_fails_never_reaches_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its failure is the probe's."""
    monkeypatch.setattr(Device, "boundary", lambda *_: 1 / 0)
    job = Job()
    job.timeline.after_first_step = lambda: job.timeline.also_tell(Device())
    for _ in range(3):
        job.step()

    assert job.timeline.steps.totals().steps == 2
