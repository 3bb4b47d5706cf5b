"""What each event of a training loop means: one pure function per event.

The time outside any named stage is `forward` from the batch to its backward, otherwise `other`.
"""

from collections.abc import Callable
from typing import Any, Final

from rank_probe.measure import events as e
from rank_probe.measure.boundaries import (
    BATCHES_SHIFT,
    BEGIN,
    COMPLETE,
    OTHER_BATCH,
    RELEASE,
    STAGE_BITS,
    UNCUT,
    UNUSED,
)
from rank_probe.measure.loop_state import (
    MOST_BATCHES,
    MOST_OPTIMIZERS,
    After,
    LoopState,
    begin_step,
    drop,
    end_failed_optimizer,
    idle,
    is_in,
    is_open,
    next_step,
    pass_,
    pop,
    push,
    use,
)
from rank_probe.wire.stages import BACKWARD, DATA, EVAL, FORWARD, OPTIMIZER, OTHER, SYNC


def after(state: LoopState, code: int) -> After:
    """Return the state after the event *code*, and the mark of the boundary at it, if any.

    The end of something that never began, or was forgotten, changes nothing.
    """
    return TRANSITIONS[code & ~STAGE_BITS](state, code & STAGE_BITS)


def _enter(state: LoopState, stage: int) -> After:
    begin = 0 if state.begun else BEGIN
    return push(state._replace(begun=True), e.ENTER, stage), stage | begin


def _part(state: LoopState, stage: int) -> After:
    """Counting does not begin here: the time before the first batch belongs to no step."""
    if state.stage in (stage, SYNC):
        return pass_(state, e.ENTER)
    return push(state, e.ENTER, stage), stage


def _ends(event: int, release: int = 0) -> Callable[[LoopState, int], After]:
    """Return the transition at the end of *event*; with RELEASE, all ranks continue together."""

    def ended(state: LoopState, _: int) -> After:
        state, changed = pop(state, event)
        return state, state.stage | release if changed else None

    return ended


def _knows(**known: Any) -> Callable[[LoopState, int], After]:
    """Return a transition that only sets the fields in *known*."""
    return lambda state, _: (state._replace(**known), None)


def _fetch(state: LoopState, _: int) -> After:
    state = end_failed_optimizer(state)
    if is_in(state, e.FETCH) or (state.stage == EVAL and state.frames):
        return pass_(state, e.FETCH)
    state, marks = next_step(state, is_batch=True)
    state, unused = drop(state)
    return push(state._replace(fetched=True), e.FETCH, DATA), DATA | marks | unused


def _fetch_ungraded(state: LoopState, _: int) -> After:
    """A loader that is read with gradients off belongs to an evaluation."""
    if state.frames or not state.gradients_tell:
        return _fetch(state, 0)
    state, marks = next_step(state, is_batch=True)
    changed = state.stage != EVAL
    state, _none = pass_(state._replace(stage=EVAL), e.FETCH)
    return state, EVAL | marks if changed else None


def _fetched(state: LoopState, _: int) -> After:
    """A loader within a loader, or in an evaluation, brings nothing to train with."""
    state, changed = pop(state, e.FETCH)
    if not changed:
        return state, state.stage | OTHER_BATCH | state.batches << BATCHES_SHIFT
    stage = FORWARD if state.automatic and not state.frames else state.stage
    if state.model_called:
        state = state._replace(model_called=False)
    if state.batches == MOST_BATCHES:
        unused = UNUSED | state.batches << BATCHES_SHIFT
        return state._replace(stage=stage, batches=1), stage | unused
    return state._replace(stage=stage, batches=state.batches + 1), stage


def _iterated(state: LoopState, _: int) -> After:
    state, changed = pop(state, e.FETCH)
    return idle(state) if changed else (state, None)


def _exhausted(state: LoopState, _: int) -> After:
    state, changed = pop(state, e.FETCH)
    if not changed:
        return state, None
    return idle(state._replace(loader_ended=state.batches > 0))


def _forward_begins(state: LoopState, _: int) -> After:
    state, marks = next_step(end_failed_optimizer(state), is_batch=False)
    state = state._replace(model_called=True)
    if state.automatic and (not state.frames or state.frames[-1].event == e.CLOSURE_BEGINS):
        changed = state.stage != FORWARD
        state = state._replace(stage=FORWARD)
        return state, FORWARD | marks if marks or changed else None
    return state, state.stage | marks if marks else None


def _forward_ungraded(state: LoopState, _: int) -> After:
    """An evaluation begins, or between a batch and its backward, a teacher's forward."""
    if state.stage == FORWARD:
        return state._replace(model_called=True), None
    return _forward_evaluates(state, 0)


def _forward_evaluates(state: LoopState, _: int) -> After:
    """No step ends here: a rank that evaluates alone counts the same steps as the others."""
    if not state.automatic or state.frames or state.stage == EVAL:
        return state, None
    if not state.gradients_tell:
        return _forward_begins(state, 0)
    return state._replace(stage=EVAL), EVAL


def _forward_ended(state: LoopState, _: int) -> After:
    """The model computes the loss, so what comes before its backward is no part of forward."""
    if state.stage != FORWARD or state.frames or not state.automatic:
        return state, None
    return _between_batches(state)


def _backward_begins(state: LoopState, _: int) -> After:
    state = end_failed_optimizer(state)
    if state.stage in (BACKWARD, SYNC):  # A backward within a backward.
        return pass_(state, e.BACKWARD_BEGINS)[0], state.stage | (UNCUT if state.has_peers else 0)
    if state.stage == EVAL and not state.frames:
        state = state._replace(gradients_tell=False)  # This was training.
    state, marks = next_step(state, is_batch=False)
    state, used = use(state)
    return push(state, e.BACKWARD_BEGINS, BACKWARD), BACKWARD | marks | used


def _gradients_ready(state: LoopState, _: int) -> After:
    """Count only the first of a backward: several roots and nested backwards send more."""
    if state.stage != BACKWARD or not is_in(state, e.BACKWARD_BEGINS):
        return state, None
    if state.frames[-1].suspended is None:  # Sent by a nested backward.
        return state, None
    return state._replace(stage=SYNC), SYNC


def _backward_ended(state: LoopState, _: int) -> After:
    """Without peers its end is the release: there is no wait to be split from it."""
    return _after_backward(state, UNCUT if state.has_peers else RELEASE)


def _backward_raised(state: LoopState, _: int) -> After:
    return _after_backward(state, 0)


def _after_backward(state: LoopState, not_cut: int) -> After:
    marks = RELEASE if state.stage == SYNC else not_cut
    state, changed = pop(state, e.BACKWARD_BEGINS)
    if not changed:
        return state, None
    if state.automatic and not state.frames:
        state = state._replace(stage=OTHER)
    elif state.automatic and state.frames[-1].event == e.CLOSURE_BEGINS:
        state = state._replace(stage=OPTIMIZER)  # The rest of the closure is no forward.
    return state, state.stage | marks


def _optimizer_begins(state: LoopState, _: int) -> After:
    if is_in(state, e.OPTIMIZER_BEGINS):  # An optimizer may wrap another.
        return pass_(state, e.OPTIMIZER_BEGINS)
    state, used = use(state)
    return push(state, e.OPTIMIZER_BEGINS, OPTIMIZER), OPTIMIZER | used


def _optimizer_ended(state: LoopState, _: int) -> After:
    """The step ends when something else begins: another optimizer may follow."""
    known = is_open(state, e.OPTIMIZER_BEGINS)
    state, changed = pop(state, e.OPTIMIZER_BEGINS)
    if known and not changed:
        return state, None
    count = min(state.optimizers + 1, MOST_OPTIMIZERS + 1)
    one_batch_a_step = state.one_batch_a_step and not (state.fetched and count > MOST_OPTIMIZERS)
    state = state._replace(optimizers=count, one_batch_a_step=one_batch_a_step)
    if not changed:
        return state, None
    return _between_batches(state)


def _between_batches(state: LoopState) -> After:
    """What follows has no name, unless the loop is known to read its batches there."""
    if state.reads_itself and not state.frames and not state.fetched:
        return state._replace(stage=DATA), DATA
    return idle(state)


def _closure_begins(state: LoopState, _: int) -> After:
    """Lightning and LBFGS run forward and backward in the closure of an optimizer."""
    if state.stage != OPTIMIZER:
        return pass_(state, e.CLOSURE_BEGINS)
    return push(state, e.CLOSURE_BEGINS, FORWARD), FORWARD


def _wait(state: LoopState, _: int) -> After:
    if state.stage == SYNC:
        return pass_(state, e.WAIT)
    return push(state, e.WAIT, SYNC), SYNC


def _engine_wait(state: LoopState, _: int) -> After:
    """Count it as the owner's wait if the owner is in a backward: the engine runs its nodes."""
    if is_open(state, e.ENGINE_WAIT):  # Nested: the outer wait goes on afterwards.
        return pass_(state, e.ENGINE_WAIT)
    if state.stage != BACKWARD:
        return state, None
    return push(state, e.ENGINE_WAIT, SYNC), SYNC


def _step(state: LoopState, _: int) -> After:
    """Complete a step at the user's call; from now on only such calls complete steps."""
    state, used = use(end_failed_optimizer(state))
    begin = 0 if state.begun else BEGIN
    state = begin_step(state._replace(begun=True, finds_steps=False))
    return state, state.stage | begin | COMPLETE | used


def _finish(state: LoopState, _: int) -> After:
    """The last step is complete if its optimizer ran: nothing follows."""
    state, marks = next_step(state, is_batch=True)
    return state, state.stage | marks if marks else None


def _steps_are_found(state: LoopState, _: int) -> After:
    return state._replace(finds_steps=state.automatic, optimizers=0), None


def _restart(state: LoopState, _: int) -> After:
    """No boundary: the next one begins the counting."""
    kept = LoopState(automatic=state.automatic, finds_steps=state.finds_steps)
    return kept._replace(gradients_tell=state.gradients_tell, has_peers=state.has_peers), None


TRANSITIONS: Final[dict[int, Callable[[LoopState, int], After]]] = {
    e.ENTER: _enter,
    e.PART: _part,
    e.LEAVE: _ends(e.ENTER),
    e.FETCH: _fetch,
    e.FETCH_UNGRADED: _fetch_ungraded,
    e.FETCHED: _fetched,
    e.ITERATED: _iterated,
    e.EXHAUSTED: _exhausted,
    e.FORWARD_BEGINS: _forward_begins,
    e.FORWARD_UNGRADED: _forward_ungraded,
    e.FORWARD_EVALUATES: _forward_evaluates,
    e.FORWARD_ENDED: _forward_ended,
    e.BACKWARD_BEGINS: _backward_begins,
    e.GRADIENTS_READY: _gradients_ready,
    e.BACKWARD_ENDED: _backward_ended,
    e.BACKWARD_RAISED: _backward_raised,
    e.OPTIMIZER_BEGINS: _optimizer_begins,
    e.OPTIMIZER_ENDED: _optimizer_ended,
    e.CLOSURE_BEGINS: _closure_begins,
    e.CLOSURE_ENDED: _ends(e.CLOSURE_BEGINS),
    e.WAIT: _wait,
    e.WAITED: _ends(e.WAIT),
    e.RELEASED: _ends(e.WAIT, RELEASE),
    e.ENGINE_WAIT: _engine_wait,
    e.ENGINE_WAITED: _ends(e.ENGINE_WAIT),
    e.ENGINE_RELEASED: _ends(e.ENGINE_WAIT, RELEASE),
    e.STEP: _step,
    e.FINISH: _finish,
    e.STEPS_ARE_FOUND: _steps_are_found,
    e.STEPS_ARE_GIVEN: _knows(finds_steps=False, optimizers=0),
    e.HAS_PEERS: _knows(has_peers=True),
    e.LOOP_READS_ITSELF: _knows(reads_itself=True),
    e.RESTART: _restart,
}
