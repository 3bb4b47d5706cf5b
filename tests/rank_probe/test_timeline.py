"""Tests of the timeline: what hooks and users report becomes stages and steps."""

import threading
from collections.abc import Callable

import pytest

from rank_probe.stages import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    EVAL,
    FORWARD,
    OPTIMIZER,
    OTHER,
    STAGES,
    SYNC,
)
from rank_probe.timeline import LONG_TAPE, Timeline
from tests.rank_probe.fake_time import FakeTime

MS = 1_000_000


class Job:
    """One rank's loop as torch's hooks report it, in fake milliseconds."""

    def __init__(self, *, automatic: bool = True) -> None:
        self.time = FakeTime()
        self.timeline = Timeline(automatic=automatic, now=self.time)

    def work(self, milliseconds: int) -> None:
        self.time.pass_(milliseconds * MS)

    def fetch(self, milliseconds: int = 5) -> None:
        self.timeline.enter_fetch()
        self.work(milliseconds)
        self.timeline.leave_fetch(forward_follows=True)

    def backward(self, milliseconds: int = 10, wait: int = 2) -> None:
        assert self.timeline.enter_backward()
        self.work(milliseconds)
        self.timeline.gradients_ready()
        self.work(wait)
        self.timeline.leave_backward()

    def optimize(self, milliseconds: int = 1) -> None:
        self.timeline.enter_optimizer()
        self.work(milliseconds)
        self.timeline.leave_optimizer()

    def milliseconds(self) -> dict[str, float]:
        """Whole steps only, stages that occurred."""
        totals = self.timeline.steps.totals().nanoseconds
        return {name: ns / MS for name, ns in zip(STAGES, totals, strict=True) if ns}

    @property
    def steps(self) -> int:
        return self.timeline.steps.totals().steps


def test_automatic_loop_is_split_into_its_stages() -> None:
    """Fetch, forward, backward, wait and optimizer each get their own time."""
    job = Job()
    for _ in range(2):
        job.fetch(5)
        job.work(20)
        job.backward(10, wait=2)
        job.work(3)
        job.optimize(1)
        job.work(4)
    job.fetch()

    assert job.steps == 2
    assert job.milliseconds() == {
        "optimizer": 1,  # The second optimizer step runs after the second release.
        "other": 7,
        "data": 10,
        "forward": 40,
        "backward": 20,
        "sync": 4,
    }


def test_step_ends_once_for_several_optimizers() -> None:
    """Two optimizers in a row are one step."""
    job = Job()
    for _ in range(3):
        job.fetch()
        job.backward()
        job.optimize()
        job.optimize()
    job.fetch()

    assert job.steps == 3


def test_accumulation_is_one_step_for_all_its_micro_batches() -> None:
    """Only an optimizer's step makes the next fetch end a step."""
    job = Job()
    for _ in range(2):
        for _ in range(4):
            job.fetch(5)
            job.backward(10, wait=0)
        job.optimize()
    job.fetch()

    assert job.steps == 2
    assert job.milliseconds()["data"] == 40


def test_step_whose_optimizer_was_skipped_joins_the_next() -> None:
    """A GradScaler that skips the optimizer loses no time, only the count."""
    job = Job()
    job.fetch(5)
    job.backward()
    job.fetch(5)
    job.backward()
    job.optimize()
    job.fetch(5)

    assert job.steps == 1
    assert job.milliseconds()["data"] == 10


def test_optimizer_that_raised_does_not_swallow_the_loop() -> None:
    """After an exception in its step the next fetch is data again."""
    job = Job()
    job.fetch()
    job.backward()
    job.timeline.enter_optimizer()
    job.work(1)
    job.fetch(5)
    job.work(20)

    assert job.timeline.clock.stage == FORWARD
    assert job.timeline.clock.depth == 0
    assert job.timeline.steps.spent()[DATA] == 10 * MS


def test_loop_without_a_loader_has_its_forward_from_the_model_call_on() -> None:
    """The call of the root module begins forward and ends the step before."""
    job = Job()
    for _ in range(2):
        job.timeline.begin_forward()
        job.work(20)
        job.backward(10, wait=2)
        job.optimize()
    job.timeline.begin_forward()

    assert job.steps == 2
    assert job.milliseconds()["forward"] == 40


def test_stage_the_user_named_is_not_renamed() -> None:
    """A fetch inside `checkpoint` comes back to it, not to forward."""
    job = Job()
    job.timeline.enter(CHECKPOINT)
    job.fetch()
    assert job.timeline.clock.stage == CHECKPOINT
    job.timeline.leave()

    assert job.timeline.clock.stage == OTHER


def test_evaluation_is_one_stage() -> None:
    """Its batches are not `data`: nobody waits for an evaluation's loader in particular."""
    job = Job()
    job.timeline.enter(EVAL)

    assert not job.timeline.enter_fetch()


def test_backward_in_a_named_evaluation_says_nothing_about_loaders() -> None:
    """An adversarial evaluation runs backward; a loader without gradients is still `eval`."""
    job = Job()
    job.timeline.enter(EVAL)
    job.backward()
    job.timeline.leave()

    assert job.timeline.begin_evaluation()


def test_end_of_the_loader_is_followed_by_no_forward() -> None:
    """What comes after the last batch is `other`."""
    job = Job()
    job.timeline.enter_fetch()
    job.timeline.leave_fetch(forward_follows=False)

    assert job.timeline.clock.stage == OTHER


def test_wait_inside_a_wait_is_one_wait() -> None:
    """barrier() waits on its own work object: the outer one is timed."""
    job = Job()
    assert job.timeline.enter_wait()
    assert not job.timeline.enter_wait()
    job.work(4)
    job.timeline.leave_wait()

    assert job.timeline.steps.spent()[SYNC] == 4 * MS
    assert job.timeline.clock.stage == OTHER


def test_nested_backward_is_one_backward() -> None:
    """Activation checkpointing runs the engine inside the engine."""
    job = Job()
    job.fetch()
    assert job.timeline.enter_backward()
    assert not job.timeline.enter_backward()
    job.timeline.leave_backward()

    assert job.timeline.clock.stage == OTHER


def test_broadcast_does_not_end_a_step() -> None:
    """The root of a broadcast waits for nobody, so its end is no release."""
    job = Job()
    job.fetch()
    job.backward(10, wait=2)
    job.optimize()
    job.timeline.enter_wait()
    job.work(50)
    job.timeline.leave_wait(release=False)
    job.fetch()

    assert job.milliseconds()["sync"] == 2


def test_explicit_steps_replace_the_automatic_ones() -> None:
    """Once the user says when a step is complete, nothing else does."""
    job = Job()
    for _ in range(3):
        job.fetch()
        job.backward()
        job.optimize()
        job.timeline.complete_step()
    for _ in range(2):
        job.fetch()
        job.backward()
        job.optimize()
    job.fetch()

    assert job.steps == 3


def test_manual_timeline_names_nothing_by_itself() -> None:
    """Without automatic stages the time after a batch is `other`, and no step ends by itself."""
    job = Job(automatic=False)
    job.fetch()
    assert job.timeline.clock.stage == OTHER
    job.backward()
    job.optimize()
    job.fetch()

    assert job.steps == 0


def test_finish_commits_the_last_step() -> None:
    """The step after which nothing came is counted when the probe ends."""
    job = Job()
    job.fetch()
    job.backward()
    job.optimize()
    assert job.steps == 0
    job.timeline.finish()

    assert job.steps == 1


@pytest.mark.parametrize(
    "report",
    [
        lambda timeline: timeline.enter(FORWARD),
        lambda timeline: timeline.leave(),
        lambda timeline: timeline.enter_wait(),
        lambda timeline: timeline.enter_fetch(),
        lambda timeline: timeline.begin_forward(),
        lambda timeline: timeline.enter_backward(),
        lambda timeline: timeline.enter_optimizer(),
        lambda timeline: timeline.leave_optimizer(),
        lambda timeline: timeline.complete_step(),
        lambda timeline: timeline.finish(),
    ],
)
def test_other_threads_are_not_timed(report: Callable[[Timeline], object]) -> None:
    """A checkpointing thread's collectives leave the training thread's clock alone."""
    job = Job()
    job.fetch()
    job.backward()
    job.timeline.enter(DATA)
    clock = job.timeline.clock
    before = (clock.stage, clock.depth, job.timeline.steps.spent(), job.steps)
    thread = threading.Thread(target=report, args=(job.timeline,))
    thread.start()
    thread.join()

    assert (clock.stage, clock.depth, job.timeline.steps.spent(), job.steps) == before


def test_disabled_timeline_times_nothing() -> None:
    """A forked child inherits the hooks but is not the rank."""
    job = Job()
    job.timeline.disable()
    job.timeline.enter(BACKWARD)
    assert not job.timeline.enter_fetch()
    job.timeline.enter_optimizer()
    job.work(10)
    job.timeline.leave_optimizer()

    assert job.timeline.clock.stage == OTHER
    assert job.timeline.steps.spent()[OPTIMIZER] == 0


def test_timing_goes_on_after_a_pause_as_if_it_had_just_begun() -> None:
    """What was open when it was turned off is forgotten, and whole steps stay whole."""
    job = Job()
    job.fetch()
    job.backward()
    job.optimize()
    job.timeline.enter(EVAL)
    job.timeline.disable()
    job.work(500)
    job.timeline.leave()
    job.timeline.enable()
    assert job.timeline.clock.depth == 0
    for _ in range(2):
        job.fetch(5)
        job.backward(10, wait=2)
        job.optimize()
    job.timeline.finish()

    assert job.steps == 2
    assert job.milliseconds() == {"optimizer": 1, "data": 10, "backward": 20, "sync": 4}


def test_closure_of_an_optimizer_is_not_the_optimizer() -> None:
    """Forward and backward that run inside step(closure) keep their names; the rest is its own."""
    job = Job()
    for _ in range(2):
        job.fetch(5)
        job.work(1)
        job.timeline.enter_optimizer()
        job.work(1)
        assert job.timeline.enter_closure()
        job.work(19)
        job.backward(10, wait=2)
        job.work(1)
        job.timeline.leave_closure()
        job.work(1)
        job.timeline.leave_optimizer()
        job.work(4)
    job.fetch()

    assert job.steps == 2
    assert job.milliseconds() == {
        "optimizer": 1 + 2 + 1,  # The second step's end comes after its release.
        "other": 4,
        "data": 10,
        "forward": 40,
        "backward": 20,
        "sync": 4,
    }


def test_engine_thread_waits_for_the_owner() -> None:
    """A collective inside backward is the owner's wait, on whichever thread the engine runs it."""
    job = Job()
    job.timeline.in_engine = lambda: True
    job.fetch()
    assert job.timeline.enter_backward()
    job.work(10)

    def on_engine_thread() -> None:
        assert job.timeline.enter_wait()
        job.work(7)
        job.timeline.leave_wait()

    thread = threading.Thread(target=on_engine_thread)
    thread.start()
    thread.join()
    job.timeline.leave_backward()

    assert job.timeline.steps.spent()[SYNC] == 7 * MS
    assert job.timeline.steps.spent()[BACKWARD] == 10 * MS


def test_long_tape_is_added_up_without_a_pusher() -> None:
    """A very fast loop does not grow while nobody reads its totals."""
    job = Job()
    for _ in range(3000):
        job.fetch(1)
        job.backward(1, wait=1)
        job.optimize()

    assert len(job.timeline.clock.tape) < 2 * LONG_TAPE
