"""Tests of the interpreter, the ledger and the timeline: what is noted becomes stages and steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_probe.measure import events as e
from rank_probe.measure.boundaries import (
    BEGIN,
    COMPLETE,
    OTHER_BATCH,
    RELEASE,
    UNCUT,
    UNUSED,
    USED,
    packed,
)
from rank_probe.measure.interpreter import Interpreter, python_read, read
from rank_probe.measure.ledger import PythonLedger, new_ledger
from rank_probe.measure.loop_state import (
    MOST_BATCHES,
    MOST_FRAMES,
    MOST_OPTIMIZERS,
    LoopState,
    is_before_model,
)
from rank_probe.measure.transitions import TRANSITIONS, after
from rank_probe.wire.stages import CHECKPOINT, DATA, EVAL, FORWARD, OTHER, STAGES, SYNC
from tests.rank_probe.measure.noted_loop import (
    BACKWARDS,
    END_OF_LOADER,
    FETCH,
    MS,
    OPTIMIZE,
    STEP,
    Does,
    Job,
    milliseconds,
)

ALONE: Does = (e.BACKWARD_BEGINS, 10.0, e.BACKWARD_ENDED)
CLOSURE: Does = (1.0, e.CLOSURE_BEGINS, 19.0, *BACKWARDS, 1.0, e.CLOSURE_ENDED, 1.0)
WHOLE_STEPS: dict[str, tuple[Does, int, dict[str, float]]] = {
    # The second step's optimizer runs after the second release, so it is not committed yet.
    "each part of an ordinary loop gets its own time": (
        (*FETCH, 20.0, *BACKWARDS, 3.0, *OPTIMIZE, 4.0) * 2 + FETCH,
        2,
        {"optimizer": 1, "other": 7, "data": 10, "forward": 40, "backward": 20, "sync": 4},
    ),
    "several optimizers in a row are one step": ((*STEP, *OPTIMIZE) * 3 + FETCH, 3, {}),
    "accumulation is one step for all its micro-batches": (
        ((*FETCH, *BACKWARDS) * 4 + OPTIMIZE) * 2 + FETCH,
        2,
        {"data": 40, "backward": 80, "sync": 16, "optimizer": 1},
    ),
    "a skipped optimizer loses no time, only the count": (
        (*FETCH, *BACKWARDS, *STEP, *FETCH),
        1,
        {"data": 10, "backward": 20, "sync": 4},
    ),
    "without a loader, the model's call begins forward and ends the step": (
        (e.FORWARD_BEGINS, 20.0, *BACKWARDS, *OPTIMIZE) * 2 + (e.FORWARD_BEGINS,),
        2,
        {"forward": 40, "backward": 20, "sync": 4, "optimizer": 1},
    ),
    "the root of a broadcast waits for nobody, so its end is no release": (
        (*STEP, e.WAIT, 50.0, e.WAITED, *FETCH),
        1,
        {"data": 5, "backward": 10, "sync": 2},
    ),
    "once the user completes steps, nothing else does": (
        (*STEP, e.STEP) * 3 + STEP * 2 + FETCH,
        3,
        {"data": 15, "backward": 30, "sync": 6, "optimizer": 2},
    ),
    "start-up is no part of the first step, nor are its collectives": (
        (e.WAIT, 3_000.0, e.RELEASED, 9_000.0, *STEP, *FETCH),
        1,
        {"data": 5, "backward": 10, "sync": 2},
    ),
    "an old release does not end a step without a collective": (
        (*STEP, *FETCH, 30.0, *OPTIMIZE, *FETCH),
        2,
        {"data": 10, "forward": 30, "backward": 10, "sync": 2, "optimizer": 2},
    ),
    "the last step is committed by the end": ((*STEP, e.FINISH), 1, {}),
    "a step after which nothing came is not": (STEP, 0, {}),
    # Lightning and LBFGS; the rest of the optimizer is its own.
    "forward and backward in an optimizer's closure keep their names": (
        (*FETCH, 1.0, e.OPTIMIZER_BEGINS, *CLOSURE, e.OPTIMIZER_ENDED, 4.0) * 2 + FETCH,
        2,
        {"optimizer": 4, "other": 4, "data": 10, "forward": 40, "backward": 20, "sync": 4},
    ),
    "both optimizers of a GAN are one step": ((*STEP, *BACKWARDS, *OPTIMIZE) * 3 + FETCH, 3, {}),
    # It has no second fetch that could end a step; the first takes one optimizer too many.
    "many steps with one batch are counted": (
        (*FETCH, *(*BACKWARDS, *OPTIMIZE) * (2 * MOST_OPTIMIZERS), e.FINISH),
        MOST_OPTIMIZERS,
        {},
    ),
    # A release before it, as of a checkpoint's barrier, would move all of it into the next.
    "a step of a rank alone begins after its backward": (
        (*FETCH, e.WAIT, e.RELEASED, 20.0, *ALONE, *OPTIMIZE) * 2 + FETCH,
        2,
        {"optimizer": 1, "data": 10, "forward": 40, "backward": 20},
    ),
}


MODEL_CALLED: dict[str, tuple[Does, bool]] = {
    "a loop may never show it": ((*STEP, *FETCH), False),
    "before the first call it is not known that this loop shows it": (FETCH, False),
    "a batch is augmented": ((*FETCH, e.FORWARD_BEGINS, *BACKWARDS, *OPTIMIZE, *FETCH), True),
    "then the model is called": ((*FETCH, e.FORWARD_BEGINS, *FETCH, e.FORWARD_BEGINS), False),
    "after backward there is nothing to call": ((*FETCH, e.FORWARD_BEGINS, *BACKWARDS), False),
}


@pytest.mark.parametrize("case", MODEL_CALLED)
def test_batch_that_is_not_yet_with_the_model_is_told(case: str) -> None:
    does, expected = MODEL_CALLED[case]

    assert is_before_model(Job().run(*does).state) is expected


@pytest.mark.parametrize("case", WHOLE_STEPS)
def test_steps_are_found_and_hold_their_stages(case: str) -> None:
    does, steps, expected = WHOLE_STEPS[case]
    totals = Job().run(*does).steps.totals()

    assert totals.steps == steps
    assert not expected or milliseconds(totals.nanoseconds) == expected


ENDS: dict[str, tuple[Does, int, dict[str, float]]] = {
    "after an optimizer raised, the next fetch is data again": (
        (*FETCH, *BACKWARDS, e.OPTIMIZER_BEGINS, 1.0, *FETCH, 20.0, e.WAIT, e.WAITED),
        FORWARD,
        {"data": 10, "backward": 10, "sync": 2, "optimizer": 1, "forward": 20},
    ),
    "the model's call ends an optimizer that raised": (
        (*FETCH, *BACKWARDS, e.OPTIMIZER_BEGINS, 5.0, e.FORWARD_BEGINS, 20.0, e.WAIT, e.WAITED),
        FORWARD,
        {"data": 5, "backward": 10, "sync": 2, "optimizer": 5, "forward": 20},
    ),
    "so does a backward": (
        (*FETCH, *BACKWARDS, e.OPTIMIZER_BEGINS, 5.0, *BACKWARDS),
        OTHER,
        {"data": 5, "backward": 20, "sync": 4, "optimizer": 5},
    ),
    # A wrapper's step calls that of the optimizer that it wraps.
    "an optimizer within an optimizer is one": (
        (*FETCH, *BACKWARDS, e.OPTIMIZER_BEGINS, 2.0, *OPTIMIZE, 3.0, e.OPTIMIZER_ENDED),
        OTHER,
        {"data": 5, "backward": 10, "sync": 2, "optimizer": 6},
    ),
    "the end of the user's stage ends an optimizer that raised in it": (
        (e.ENTER | CHECKPOINT, e.OPTIMIZER_BEGINS, e.LEAVE),
        OTHER,
        {},
    ),
    "a fetch in a stage that the user named comes back to it": (
        (e.ENTER | CHECKPOINT, *FETCH, 3.0, e.LEAVE),
        OTHER,
        {"data": 5, "checkpoint": 3},
    ),
    # Nobody waits for an evaluation's loader in particular.
    "an evaluation's batches are not data": ((e.ENTER | EVAL, *FETCH, e.LEAVE), OTHER, {"eval": 5}),
    # An adversarial one; a loader without gradients is an evaluation's nevertheless.
    "a backward in a named evaluation says nothing about loaders": (
        (e.ENTER | EVAL, *BACKWARDS, e.LEAVE, e.FETCH_UNGRADED, e.FETCHED),
        EVAL,
        {"backward": 10, "sync": 2},
    ),
    "after the last batch comes no forward": (END_OF_LOADER, OTHER, {}),
    # barrier() waits on its own work object: the outer wait is timed.
    "a wait within a wait is one wait": (
        (e.ENTER | OTHER, e.WAIT, 1.0, e.WAIT, 2.0, e.RELEASED, 1.0, e.WAITED, e.LEAVE),
        OTHER,
        {"sync": 4},
    ),
    # Activation checkpointing: the inner engine ends no local work.
    "a backward within a backward is one backward": (
        (
            *(*FETCH, e.BACKWARD_BEGINS, 4.0, e.BACKWARD_BEGINS, 3.0, e.GRADIENTS_READY),
            *(e.BACKWARD_ENDED, 2.0, e.GRADIENTS_READY, 1.0, e.BACKWARD_ENDED),
        ),
        OTHER,
        {"data": 5, "backward": 9, "sync": 1},
    ),
    # The engine of somebody else's backward waits for nobody here.
    "a wait on an engine's thread is the owner's in its backward only": (
        (
            *(*FETCH, e.ENGINE_WAIT, 3.0, e.ENGINE_RELEASED, e.BACKWARD_BEGINS, 10.0),
            # DeepSpeed waits for its streams, and then for the last bucket.
            *(e.ENGINE_WAIT, 4.0, e.ENGINE_WAIT, 1.0, e.ENGINE_RELEASED, 2.0, e.ENGINE_RELEASED),
            e.BACKWARD_ENDED,
        ),
        OTHER,
        {"data": 5, "forward": 3, "backward": 10, "sync": 7},
    ),
    "a loop that reads its batches itself does so after the optimizer, once that is known": (
        (
            *(e.FORWARD_BEGINS, 3.0, *BACKWARDS, *OPTIMIZE, 7.0),
            *(e.LOOP_READS_ITSELF, e.FORWARD_BEGINS, 3.0, *BACKWARDS, *OPTIMIZE, 8.0),
            *(e.FORWARD_BEGINS, e.WAIT, e.WAITED),
        ),
        FORWARD,
        {"forward": 6, "backward": 20, "sync": 4, "optimizer": 2, "other": 7, "data": 8},
    ),
    # Nobody else may evaluate, so this is no place where a step ends.
    "a model called without gradients evaluates until it is called with them": (
        (*STEP, e.FORWARD_UNGRADED, 9.0, e.FORWARD_EVALUATES, e.FORWARD_BEGINS, 20.0, *BACKWARDS),
        OTHER,
        {"data": 5, "backward": 20, "sync": 4, "optimizer": 1, "eval": 9, "forward": 20},
    ),
    "between a batch and its backward it may be a teacher": (
        (*FETCH, e.FORWARD_UNGRADED, 9.0, *BACKWARDS),
        OTHER,
        {"data": 5, "forward": 9, "backward": 10, "sync": 2},
    ),
    "unless it is one that is trained, in eval mode": (
        (*FETCH, 1.0, e.FORWARD_EVALUATES, 9.0, e.FORWARD_BEGINS, 2.0, *BACKWARDS),
        OTHER,
        {"data": 5, "eval": 9, "forward": 3, "backward": 10, "sync": 2},
    ),
    "a loop that trains in eval mode evaluates nothing once that is known": (
        (e.FORWARD_UNGRADED, *BACKWARDS, *OPTIMIZE, e.FORWARD_UNGRADED, 20.0, *BACKWARDS),
        OTHER,
        {"backward": 20, "sync": 4, "optimizer": 1, "forward": 20},
    ),
    "what comes between a model that returns its loss and its backward is other": (
        (*FETCH, e.FORWARD_BEGINS, 20.0, e.FORWARD_ENDED, 7.0, *BACKWARDS),
        OTHER,
        {"data": 5, "forward": 20, "other": 7, "backward": 10, "sync": 2},
    ),
    "a loop that reads its batches itself may do so there": (
        (
            *(e.FORWARD_BEGINS, 3.0, *BACKWARDS, e.LOOP_READS_ITSELF),
            *(e.FORWARD_BEGINS, 3.0, e.FORWARD_ENDED, 8.0, *BACKWARDS),
        ),
        OTHER,
        {"forward": 6, "data": 8, "backward": 20, "sync": 4},
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_loop_is_in_the_right_stage_and_nothing_stays_open(case: str) -> None:
    does, stage, expected = ENDS[case]
    job = Job().run(*does)

    assert job.state.stage == stage
    assert job.state.frames == ()
    assert milliseconds(job.steps.totals().spent) == expected


def test_manual_timeline_names_nothing_by_itself() -> None:
    """Without automatic stages the time after a batch is `other`, and no step ends by itself."""
    job = Job(automatic=False).run(*FETCH)
    assert job.state.stage == OTHER

    assert job.run(*BACKWARDS, *OPTIMIZE, *FETCH).steps.totals().steps == 0


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ((e.BACKWARD_BEGINS, e.GRADIENTS_READY, e.BACKWARD_ENDED), False),
        ((e.BACKWARD_BEGINS, e.BACKWARD_ENDED), True),
        ((e.BACKWARD_BEGINS, e.BACKWARD_RAISED), False),
        ((e.BACKWARD_BEGINS, e.BACKWARD_BEGINS), True),
    ],
)
def test_backward_whose_wait_was_not_split_is_told(codes: tuple[int, ...], told: bool) -> None:
    """But a backward that raised never came to its wait, and a rank without peers has none."""
    assert not Job().run(*codes).marked(UNCUT)
    assert bool(Job().run(e.HAS_PEERS, e.RESTART, *codes).marked(UNCUT)) == told


def random_events() -> st.SearchStrategy[list[tuple[int, int]]]:
    """Return events in any order, each with a stage where it takes one, and the time before it."""
    stages = st.integers(0, len(STAGES) - 1)
    with_stage = st.builds(int.__or__, st.sampled_from([e.ENTER, e.PART]), stages)
    others = st.sampled_from([code for code in TRANSITIONS if code not in (e.ENTER, e.PART)])
    return st.lists(st.tuples(with_stage | others, st.integers(0, 10**12)), max_size=40)


@settings(deadline=None, max_examples=200)  # Other work on the machine is not a failure.
@given(noted=random_events(), automatic=st.booleans())
def test_stages_add_up_to_wall_time(noted: list[tuple[int, int]], automatic: bool) -> None:
    """Whatever begins and ends, in whichever order, no nanosecond is lost or counted twice."""
    job = Job(automatic=automatic)
    job.run(e.ENTER | OTHER, e.LEAVE)  # Counting begins.
    elapsed = 0
    for code, before in noted:
        if code == e.RESTART:
            continue  # It forgets the time before it, on purpose.
        job.time.pass_(before)
        elapsed += before
        job.run(code)
    job.run(e.ENTER | OTHER)

    assert sum(job.steps.totals().spent) == elapsed
    assert all(nanoseconds >= 0 for nanoseconds in job.steps.totals().spent)
    assert sum(job.steps.totals().nanoseconds) <= elapsed


@settings(deadline=None, max_examples=150)
@given(noted=random_events(), automatic=st.booleans())
def test_interpreter_remembers_what_is_so(noted: list[tuple[int, int]], automatic: bool) -> None:
    """Its memory gives the same boundaries as the meaning of each event, in C as in Python."""
    start = LoopState(automatic=automatic, finds_steps=automatic)
    state, marks = start, []
    flat: list[int] = []
    for code, at in noted * 2:
        state, mark = after(state, code)
        if mark is not None:
            marks += [mark, at]
        flat += (code, at)

    for walk in {read, python_read}:
        node, boundaries = walk(Interpreter(start)._node, packed(flat))
        assert boundaries == packed(marks)
        assert node.state == state


def test_loop_that_never_ends_a_stage_costs_no_more_with_time() -> None:
    """A stage that millions of steps enter and never leave takes bounded memory."""
    interpreter = Interpreter(LoopState(automatic=True, finds_steps=True))
    interpreter.read(packed([e.ENTER | FORWARD, 0] * (2 * MOST_FRAMES)))
    known = len(interpreter.seen()), interpreter.state
    interpreter.read(packed([e.ENTER | FORWARD, 0] * 10_000))

    assert len(interpreter.state.frames) == MOST_FRAMES
    assert (len(interpreter.seen()), interpreter.state) == known


BATCHES: dict[str, tuple[Does, list[int]]] = {
    "every batch of a loop that reads ahead is used once": (
        (*FETCH, *FETCH, *BACKWARDS, *FETCH, *BACKWARDS),
        [USED, USED],
    ),
    # With gradients on, only the end of its loader shows that nobody trained with them.
    "batches of an evaluation are not used": (
        (*FETCH, *BACKWARDS, *FETCH * 3, *END_OF_LOADER, *FETCH, *BACKWARDS),
        [USED, UNUSED, USED],
    ),
    # It asks for the batch after them, and finds the loader's end, before it trains with them.
    "the last batches of a loop that reads ahead are used": (
        (*FETCH, *FETCH, *END_OF_LOADER, *BACKWARDS, *BACKWARDS, *FETCH),
        [USED],
    ),
    # A data set that reads another loader: what the loop gets is the batch.
    "an inner loader brings none": ((e.FETCH, *FETCH, e.FETCHED, *BACKWARDS), [OTHER_BATCH, USED]),
    "an evaluation between a batch and its backward takes nothing from it": (
        (*FETCH, *(e.FETCH_UNGRADED, e.FETCHED, e.FETCH_UNGRADED, e.EXHAUSTED), *BACKWARDS),
        [OTHER_BATCH, USED],
    ),
}


@pytest.mark.parametrize("case", BATCHES)
def test_batches_are_told_to_be_used_or_not(case: str) -> None:
    does, expected = BATCHES[case]

    assert Job().run(*does).marked(USED | UNUSED | OTHER_BATCH) == expected


def test_loop_that_never_trains_keeps_few_batches() -> None:
    """An inference with gradients on does not collect them."""
    job = Job().run(*FETCH * (5 * MOST_BATCHES))

    assert job.state.batches <= MOST_BATCHES
    assert UNUSED in job.marked(UNUSED)


def test_last_step_and_the_stage_of_now_are_as_old_as_they_are() -> None:
    """On the wall clock as it is set now; before the first step there is no reading."""
    job = Job().run(*FETCH)
    assert job.steps.totals().last_step_timestamp_seconds is None
    job.run(*BACKWARDS, *OPTIMIZE, *FETCH, 7.0)
    job.wall = 9_000.0
    totals = job.steps.totals()

    assert totals.last_step_timestamp_seconds == pytest.approx(9_000 - 0.012, abs=1e-6)
    assert totals.elapsed_seconds == pytest.approx(0.007)


def test_timing_goes_on_after_a_pause_as_if_it_had_just_begun() -> None:
    """What was open when it was turned off is forgotten, and whole steps stay whole."""
    job = Job()
    job.run(*STEP, e.ENTER | EVAL)
    job.timeline.disable()
    job.time.pass_(500 * MS)
    job.run(e.LEAVE)
    job.timeline.enable()
    assert job.timeline.state.frames == ()
    job.run(*STEP, *STEP)
    job.timeline.finish()

    assert job.steps.totals().steps == 2
    spent = {"optimizer": 1, "data": 10, "backward": 20, "sync": 4}
    assert milliseconds(job.steps.totals().nanoseconds) == spent


def test_device_hears_each_boundary_when_it_happens() -> None:
    """Its counting begins where the second step does."""
    job, marks = Job(), list[int]()
    job.timeline.after_first_step = lambda: job.timeline.also_tell(marks.append)
    job.run(*STEP, e.FETCH)
    assert marks == [DATA | BEGIN]
    job.run(e.FETCHED, e.WAIT, e.WAIT)  # Within a wait: no boundary.
    assert marks[1:] == [FORWARD, SYNC]
    job.run(e.RELEASED, e.WAITED, *STEP)
    assert not any(mark & COMPLETE for mark in marks)
    job.run(e.FETCH)

    assert marks[-1] == DATA | COMPLETE


compiled = pytest.mark.skipif(
    new_ledger is PythonLedger, reason="the extension module is not built: there is no C compiler"
)


def boundaries() -> st.SearchStrategy[list[tuple[int, int]]]:
    """Return stages with any marks, and the time before each."""
    marks = [BEGIN, RELEASE, COMPLETE, USED | 1 << 11, UNCUT, 0, 0]
    mark = st.builds(
        lambda stage, some: stage | sum({*some}),
        st.integers(0, len(STAGES) - 1),
        st.lists(st.sampled_from(marks), max_size=3),
    )
    return st.lists(st.tuples(mark, st.integers(0, 10**12)), max_size=60)


@compiled
@settings(deadline=None, max_examples=200)
@given(marks=boundaries(), first=st.integers(0, 60))
def test_ledgers_agree(marks: list[tuple[int, int]], first: int) -> None:
    """On any boundaries, in one part or two, with each step and each mark in the same order."""
    now, flat = 1_000, []
    for mark, before in marks:
        now += before
        flat += [mark, now]
    found = []
    for new in (PythonLedger, new_ledger):
        for parts in ([flat], [flat[: 2 * first], flat[2 * first :]]):
            ledger = new(1_000)
            told = [ledger.add(packed(part)) for part in parts]
            whole = [step for steps, _ in told for step in steps]
            settling = [mark for _, marks in told for mark in marks]
            sums = tuple(ledger.nanoseconds), tuple(ledger.committed)
            at = ledger.since, ledger.steps, ledger.last_completed
            found.append((whole, settling, sums, at))

    assert found == found[:1] * 4


@compiled
def test_stage_that_does_not_exist_is_refused() -> None:
    """An unknown stage raises IndexError; it would be written beyond the end of the ledger."""
    ledger = new_ledger(0)
    with pytest.raises(IndexError, match="no such stage: 15"):
        ledger.add(packed([15, 1]))
