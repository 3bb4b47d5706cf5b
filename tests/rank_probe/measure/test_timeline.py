"""Tests of the timeline: whose events count, and what happens at once."""

import threading
from collections.abc import Callable

import pytest

from rank_probe.measure import events
from rank_probe.measure.boundaries import BEGIN, COMPLETE, STAGE_BITS
from rank_probe.measure.tape import LONG
from rank_probe.measure.timeline import Timeline
from rank_probe.wire.stages import BACKWARD, DATA, EVAL, FORWARD, OPTIMIZER, OTHER, STAGES
from tests.rank_probe.fake_time import FakeTime

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


@pytest.mark.parametrize(
    "report",
    [
        *(
            lambda timeline, code=code: timeline.tape.note(code)
            for code in (
                events.ENTER | FORWARD,
                events.LEAVE,
                events.WAIT,
                events.FETCH,
                events.FORWARD_BEGINS,
                events.BACKWARD_BEGINS,
                events.OPTIMIZER_BEGINS,
                events.OPTIMIZER_ENDED,
                events.STEP,
            )
        ),
        lambda timeline: timeline.finish(),
    ],
)
def test_other_threads_are_not_timed(report: Callable[[Timeline], object]) -> None:
    """A checkpointing thread's collectives leave the training thread's clock alone."""
    job = Job()
    job.step()
    job.note(events.ENTER | DATA)
    before = (job.timeline.state, job.timeline.steps.spent(), job.timeline.steps.totals().steps)
    thread = threading.Thread(target=report, args=(job.timeline,))
    thread.start()
    thread.join()
    after = (job.timeline.state, job.timeline.steps.spent(), job.timeline.steps.totals().steps)

    assert after == before


def test_thread_that_trains_is_timed_from_its_beginning() -> None:
    """What the thread that started the probe had begun is forgotten, its time with it."""
    job = Job()
    job.note(events.ENTER | EVAL)
    job.time.pass_(500 * MS)

    def train() -> None:
        assert job.timeline.follow_training()
        job.step()
        job.timeline.finish()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()

    assert job.timeline.state.frames == ()
    assert job.milliseconds() == {"data": 5, "backward": 10, "sync": 2}


def test_disabled_timeline_times_nothing() -> None:
    """A forked child inherits the hooks but is not the rank."""
    job = Job()
    job.timeline.disable()
    job.note(events.ENTER | BACKWARD)
    job.note(events.OPTIMIZER_BEGINS)
    job.time.pass_(10 * MS)
    job.note(events.OPTIMIZER_ENDED)

    assert job.timeline.state.stage == OTHER
    assert job.timeline.steps.spent()[OPTIMIZER] == 0


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


def test_device_hears_each_boundary_when_it_happens() -> None:
    """Its counting begins where the second step does."""

    class Device:
        def __init__(self) -> None:
            self.marks: list[int] = []

        def boundary(self, mark: int) -> None:
            self.marks.append(mark)

    job, device = Job(), Device()
    job.timeline.after_first_step = lambda: job.timeline.also_tell(device)
    job.step()
    job.note(events.FETCH)
    assert device.marks == [DATA | BEGIN]
    job.note(events.FETCHED)
    assert device.marks[1:] == [FORWARD]
    job.note(events.WAIT)
    job.note(events.WAIT)  # Within a wait: no boundary.
    assert [mark & STAGE_BITS for mark in device.marks[2:]] == [STAGES.index("sync")]
    job.note(events.RELEASED)
    job.note(events.WAITED)
    job.step()

    assert sum(bool(mark & COMPLETE) for mark in device.marks) == 0
    job.note(events.FETCH)
    assert device.marks[-1] == DATA | COMPLETE


def test_device_that_fails_never_reaches_the_loop() -> None:
    """Its failure is the probe's."""

    class Device:
        def boundary(self, mark: int) -> None:
            raise RuntimeError("ours")

    job = Job()
    job.timeline.after_first_step = lambda: job.timeline.also_tell(Device())
    for _ in range(3):
        job.step()

    assert job.timeline.steps.totals().steps == 2
