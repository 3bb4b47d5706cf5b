"""Tests of the interpreter: what hooks and users note becomes stages and steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_probe.measure import events
from rank_probe.measure.boundaries import COMPLETE, OTHER_BATCH, UNCUT, UNUSED, USED
from rank_probe.measure.interpreter import Interpreter, python_read, read
from rank_probe.measure.loop_state import MOST_BATCHES, MOST_OPTIMIZERS, LoopState
from rank_probe.measure.steps import Steps
from rank_probe.measure.transitions import TRANSITIONS, after
from rank_probe.wire.stages import (
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

MS = 1_000_000


class Job:
    """One rank's loop as the hooks note it, in fake milliseconds."""

    def __init__(self, *, automatic: bool = True) -> None:
        self._interpreter = Interpreter(LoopState(automatic=automatic, finds_steps=automatic))
        self._noted: list[int] = []
        self._now = 1_000
        self.marks: list[int] = []
        self.ledger = Steps(self._boundaries, lambda: self._now, told=self.marks.append)

    def note(self, *codes: int) -> None:
        for code in codes:
            self._noted += (code, self._now)

    @property
    def state(self) -> LoopState:
        self.ledger.fold()
        return self._interpreter.state

    def _boundaries(self) -> list[int]:
        taken, self._noted = self._noted, []
        return self._interpreter.read(taken)

    def work(self, milliseconds: int) -> None:
        self._now += milliseconds * MS

    def fetch(self, milliseconds: int = 5) -> None:
        self.note(events.FETCH)
        self.work(milliseconds)
        self.note(events.FETCHED)

    def backward(self, milliseconds: int = 10, wait: int = 2) -> None:
        self.note(events.BACKWARD_BEGINS)
        self.work(milliseconds)
        self.note(events.GRADIENTS_READY)
        self.work(wait)
        self.note(events.BACKWARD_ENDED)

    def optimize(self, milliseconds: int = 1) -> None:
        self.note(events.OPTIMIZER_BEGINS)
        self.work(milliseconds)
        self.note(events.OPTIMIZER_ENDED)

    def milliseconds(self) -> dict[str, float]:
        """Whole steps only, stages that occurred."""
        totals = self.ledger.totals().nanoseconds
        return {name: ns / MS for name, ns in zip(STAGES, totals, strict=True) if ns}

    @property
    def steps(self) -> int:
        return self.ledger.totals().steps


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
    job.note(events.OPTIMIZER_BEGINS)
    job.work(1)
    job.fetch(5)
    job.work(20)

    assert job.state.stage == FORWARD
    assert len(job.state.frames) == 0
    assert job.ledger.spent()[DATA] == 10 * MS


def test_loop_without_a_loader_has_its_forward_from_the_model_call_on() -> None:
    """The call of the root module begins forward and ends the step before."""
    job = Job()
    for _ in range(2):
        job.note(events.FORWARD_BEGINS)
        job.work(20)
        job.backward(10, wait=2)
        job.optimize()
    job.note(events.FORWARD_BEGINS)

    assert job.steps == 2
    assert job.milliseconds()["forward"] == 40


def test_stage_the_user_named_is_not_renamed() -> None:
    """A fetch inside `checkpoint` comes back to it, not to forward."""
    job = Job()
    job.note(events.ENTER | CHECKPOINT)
    job.fetch()
    assert job.state.stage == CHECKPOINT
    job.note(events.LEAVE)

    assert job.state.stage == OTHER


def test_evaluation_is_one_stage() -> None:
    """Its batches are not `data`: nobody waits for an evaluation's loader in particular."""
    job = Job()
    job.note(events.ENTER | EVAL)
    job.fetch(5)
    job.note(events.LEAVE)

    assert job.ledger.spent()[EVAL] == 5 * MS
    assert job.ledger.spent()[DATA] == 0
    assert job.state.frames == ()


def test_backward_in_a_named_evaluation_says_nothing_about_loaders() -> None:
    """An adversarial evaluation runs backward; a loader without gradients is still `eval`."""
    job = Job()
    job.note(events.ENTER | EVAL)
    job.backward()
    job.note(events.LEAVE)

    job.note(events.FETCH_UNGRADED)

    assert job.state.stage == EVAL


def test_end_of_the_loader_is_followed_by_no_forward() -> None:
    """What comes after the last batch is `other`."""
    job = Job()
    job.note(events.FETCH)
    job.note(events.EXHAUSTED)

    assert job.state.stage == OTHER


def test_wait_inside_a_wait_is_one_wait() -> None:
    """barrier() waits on its own work object: the outer one is timed, and only it can release."""
    job = Job()
    job.note(events.WAIT)
    job.work(1)
    job.note(events.WAIT)
    job.work(2)
    job.note(events.RELEASED)
    job.work(1)
    job.note(events.WAITED)

    assert job.ledger.spent()[SYNC] == 4 * MS
    assert job.state.stage == OTHER


def test_nested_backward_is_one_backward() -> None:
    """Activation checkpointing runs the engine inside the engine, which ends no local work."""
    job = Job()
    job.fetch()
    job.note(events.BACKWARD_BEGINS)
    job.work(4)
    job.note(events.BACKWARD_BEGINS)
    job.work(3)
    job.note(events.GRADIENTS_READY, events.BACKWARD_ENDED)
    job.work(2)
    job.note(events.GRADIENTS_READY)
    job.work(1)
    job.note(events.BACKWARD_ENDED)

    assert job.ledger.spent()[BACKWARD] == 9 * MS
    assert job.ledger.spent()[SYNC] == 1 * MS
    assert job.state.stage == OTHER


def test_broadcast_does_not_end_a_step() -> None:
    """The root of a broadcast waits for nobody, so its end is no release."""
    job = Job()
    job.fetch()
    job.backward(10, wait=2)
    job.optimize()
    job.note(events.WAIT)
    job.work(50)
    job.note(events.WAITED)
    job.fetch()

    assert job.milliseconds()["sync"] == 2


def test_explicit_steps_replace_the_automatic_ones() -> None:
    """Once the user says when a step is complete, nothing else does."""
    job = Job()
    for _ in range(3):
        job.fetch()
        job.backward()
        job.optimize()
        job.note(events.STEP)
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
    assert job.state.stage == OTHER
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
    job.note(events.FINISH)

    assert job.steps == 1


def test_closure_of_an_optimizer_is_not_the_optimizer() -> None:
    """Forward and backward that run inside step(closure) keep their names; the rest is its own."""
    job = Job()
    for _ in range(2):
        job.fetch(5)
        job.work(1)
        job.note(events.OPTIMIZER_BEGINS)
        job.work(1)
        job.note(events.CLOSURE_BEGINS)
        job.work(19)
        job.backward(10, wait=2)
        job.work(1)
        job.note(events.CLOSURE_ENDED)
        job.work(1)
        job.note(events.OPTIMIZER_ENDED)
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


def test_wait_on_an_engine_thread_is_the_owners_in_its_backward_only() -> None:
    """The engine of somebody else's backward waits for nobody here."""
    job = Job()
    job.fetch()
    job.note(events.ENGINE_WAIT)
    job.work(3)
    job.note(events.ENGINE_RELEASED)
    job.note(events.BACKWARD_BEGINS)
    job.work(10)
    job.note(events.ENGINE_WAIT)
    job.work(7)
    job.note(events.ENGINE_RELEASED, events.BACKWARD_ENDED)

    assert job.ledger.spent()[FORWARD] == 3 * MS
    assert job.ledger.spent()[BACKWARD] == 10 * MS
    assert job.ledger.spent()[SYNC] == 7 * MS


@pytest.mark.parametrize("next_event", [events.BACKWARD_BEGINS, events.FORWARD_BEGINS])
def test_optimizer_that_raised_ends_with_the_next_pass(next_event: int) -> None:
    """A loop without a loader, interrupted in a notebook, goes on in the right stage."""
    job = Job()
    for _ in range(2):
        job.backward()
        job.optimize()
    job.backward()
    job.note(events.OPTIMIZER_BEGINS)
    job.work(5)
    job.note(next_event)
    job.work(20)

    assert job.state.stage in (BACKWARD, FORWARD)
    assert job.ledger.spent()[OPTIMIZER] == (1 + 1 + 5) * MS


def test_optimizer_that_raised_in_a_stage_ends_with_it() -> None:
    """The user's `with` block ends what never ended inside it."""
    job = Job()
    job.note(events.ENTER | CHECKPOINT, events.OPTIMIZER_BEGINS, events.LEAVE)

    assert job.state.frames == ()
    assert job.state.stage == OTHER


def test_both_optimizers_of_a_gan_are_one_step() -> None:
    """A backward without a new batch belongs to the step of that batch."""
    job = Job()
    for _ in range(3):
        job.fetch()
        job.backward()
        job.optimize()
        job.backward()
        job.optimize()
    job.fetch()

    assert job.steps == 3


def test_many_steps_with_one_batch_are_counted() -> None:
    """Overfitting one batch has no second fetch that could end a step."""
    job = Job()
    job.fetch()
    for _ in range(2 * MOST_OPTIMIZERS):
        job.backward()
        job.optimize()
    job.note(events.FINISH)

    assert job.steps == MOST_OPTIMIZERS  # The first one took as many optimizers and one.


def test_loop_that_reads_its_batches_itself() -> None:
    """Once the probe knows, the time from the optimizer to the forward is `data`."""
    job = Job()
    for known in (False, True):
        if known:
            job.note(events.LOOP_READS_ITSELF)
        job.note(events.FORWARD_BEGINS)
        job.work(3)
        job.backward()
        job.optimize()
        job.work(7)
    job.note(events.FORWARD_BEGINS)

    assert job.ledger.spent()[OTHER] == 7 * MS
    assert job.ledger.spent()[DATA] == 7 * MS


def batches_told(job: Job) -> list[int]:
    """Return what is told of batches, without the stages."""
    job.ledger.fold()
    told = USED | UNUSED | OTHER_BATCH
    return [mark & told for mark in job.marks if mark & told]


def test_batches_are_used_by_the_backward_that_follows() -> None:
    """Two loaders, or a loop that reads ahead: every batch is used once."""
    job = Job()
    job.fetch()
    job.fetch()
    job.backward()
    job.fetch()
    job.backward()

    assert batches_told(job) == [USED, USED]


def test_batches_of_an_evaluation_are_not_used() -> None:
    """With gradients on, only the end of its loader shows that nobody trained with them."""
    job = Job()
    job.fetch()
    job.backward()
    for _ in range(3):
        job.fetch()
    job.note(events.FETCH, events.EXHAUSTED)
    job.fetch()
    job.backward()

    assert batches_told(job) == [USED, UNUSED, USED]


def test_last_batches_of_a_loop_that_reads_ahead_are_used() -> None:
    """It asks for the batch after them, and finds the loader's end, before it trains with them."""
    job = Job()
    job.fetch()
    job.fetch()
    job.note(events.FETCH, events.EXHAUSTED)
    job.backward()
    job.backward()
    job.fetch()

    assert batches_told(job) == [USED]


def test_loader_within_a_loader_brings_no_batch() -> None:
    """A data set that reads another loader: what the loop gets is the batch."""
    job = Job()
    job.note(events.FETCH)
    job.fetch()
    job.note(events.FETCHED)
    job.backward()

    assert batches_told(job) == [OTHER_BATCH, USED]


def test_evaluation_between_a_batch_and_its_backward_takes_nothing_from_it() -> None:
    """The end of the evaluation's loader says nothing about the training batch."""
    job = Job()
    job.fetch()
    job.note(events.FETCH_UNGRADED, events.FETCHED, events.FETCH_UNGRADED, events.EXHAUSTED)
    job.backward()

    assert batches_told(job)[-1] == USED


def test_loop_that_never_trains_keeps_few_batches() -> None:
    """An inference with gradients on does not collect them."""
    job = Job()
    for _ in range(5 * MOST_BATCHES):
        job.fetch()

    assert job.state.batches <= MOST_BATCHES
    assert UNUSED in batches_told(job)


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ((events.BACKWARD_BEGINS, events.GRADIENTS_READY, events.BACKWARD_ENDED), False),
        ((events.BACKWARD_BEGINS, events.BACKWARD_ENDED), True),
        ((events.BACKWARD_BEGINS, events.BACKWARD_RAISED), False),
        ((events.BACKWARD_BEGINS, events.BACKWARD_BEGINS), True),
    ],
)
def test_backward_whose_wait_was_not_split_is_told(codes: tuple[int, ...], told: bool) -> None:
    """But a backward that raised never came to its wait, and a rank without peers has none."""
    alone, job = Job(), Job()
    alone.note(*codes)
    alone.ledger.fold()
    assert not any(mark & UNCUT for mark in alone.marks)

    job.note(events.HAS_PEERS, events.RESTART, *codes)
    job.ledger.fold()

    assert any(mark & UNCUT for mark in job.marks) == told


def test_step_of_a_rank_alone_begins_after_its_backward() -> None:
    """A release before it, as of a checkpoint's barrier, would move all of it into the next."""
    job = Job()
    for _ in range(2):
        job.fetch(5)
        job.note(events.WAIT, events.RELEASED)
        job.work(20)
        job.note(events.BACKWARD_BEGINS)
        job.work(10)
        job.note(events.BACKWARD_ENDED)
        job.optimize(1)
    job.fetch()

    assert job.steps == 2
    assert job.milliseconds() == {"optimizer": 1, "data": 10, "forward": 40, "backward": 20}


def random_events() -> st.SearchStrategy[list[tuple[int, int]]]:
    """Return events in any order, each with a stage where it takes one, and the time before it."""
    stages = st.integers(0, len(STAGES) - 1)
    with_stage = st.builds(int.__or__, st.sampled_from([events.ENTER, events.PART]), stages)
    others = st.sampled_from(
        [code for code in TRANSITIONS if code not in (events.ENTER, events.PART)]
    )
    return st.lists(st.tuples(with_stage | others, st.integers(0, 10**12)), max_size=40)


@settings(deadline=None, max_examples=500)  # Other work on the machine is not a failure.
@given(noted=random_events(), automatic=st.booleans())
def test_stages_add_up_to_wall_time(noted: list[tuple[int, int]], automatic: bool) -> None:
    """Whatever begins and ends, in whichever order, no nanosecond is lost or counted twice."""
    job = Job(automatic=automatic)
    job.note(events.ENTER | OTHER, events.LEAVE)  # Counting begins.
    elapsed = 0
    for code, before in noted:
        if code == events.RESTART:
            continue  # It forgets the time before it, on purpose.
        job._now += before
        elapsed += before
        job.note(code)
    job.note(events.ENTER | OTHER)

    assert sum(job.ledger.spent()) == elapsed
    assert all(nanoseconds >= 0 for nanoseconds in job.ledger.spent())
    assert sum(job.ledger.totals().nanoseconds) <= elapsed


@settings(deadline=None, max_examples=300)
@given(noted=random_events(), automatic=st.booleans())
def test_interpreter_remembers_only_what_is_so(
    noted: list[tuple[int, int]], automatic: bool
) -> None:
    """Its memory gives the same boundaries as the meaning of each event, again and again."""
    start = LoopState(automatic=automatic, finds_steps=automatic)
    interpreter, state, marks = Interpreter(start), start, []
    flat: list[int] = []
    for code, at in noted * 2:
        state, mark = after(state, code)
        if mark is not None:
            marks += [mark, at]
        flat += (code, at)

    assert interpreter.read(flat) == marks
    assert interpreter.state == state


def test_every_event_has_a_meaning() -> None:
    """No code that a hook can note is unknown."""
    codes = {value for name, value in vars(events).items() if name.isupper()}

    assert codes == set(TRANSITIONS)


@settings(deadline=None, max_examples=300)
@given(noted=random_events())
def test_walk_in_c_is_that_in_python(noted: list[tuple[int, int]]) -> None:
    """Both give the same boundaries, and end in the same state."""
    if read is python_read:
        pytest.skip("the extension module is not built: there is no C compiler")
    start = LoopState(automatic=True, finds_steps=True)
    flat = [number for each in noted for number in each]
    one, other = Interpreter(start), Interpreter(start)
    for _ in range(2):
        one._node, boundaries = python_read(one._node, flat)

        assert other.read(flat) == boundaries
        assert other.state == one.state


def test_steps_end_where_the_next_begins() -> None:
    """The mark that completes a step is on the boundary of the next one's first event."""
    state = LoopState(automatic=True, finds_steps=True)
    marks = []
    for code in (
        *(events.FETCH, events.FETCHED, events.BACKWARD_BEGINS, events.BACKWARD_ENDED),
        *(events.OPTIMIZER_BEGINS, events.OPTIMIZER_ENDED, events.FETCH),
    ):
        state, mark = after(state, code)
        marks.append(mark or 0)

    assert [bool(mark & COMPLETE) for mark in marks] == [False] * 6 + [True]
