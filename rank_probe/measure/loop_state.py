"""Where a training loop is: the stage, what is open around it, and the step so far."""

from typing import Final, NamedTuple

from rank_probe.measure import events as e
from rank_probe.measure.boundaries import BATCHES_SHIFT, BEGIN, COMPLETE, UNUSED, USED
from rank_probe.wire.stages import FORWARD, OTHER

# One step may run several optimizers, as in a GAN. More than this after one batch means that the
# loop takes many steps with each batch.
MOST_OPTIMIZERS: Final = 8
# Most batches that wait to be used; without a limit, a loop that never trains would collect them.
MOST_BATCHES: Final = 64
# Most open frames; the outermost go first. A loop may open a frame in each step and never end it.
MOST_FRAMES: Final = 64


class Frame(NamedTuple):
    """Something that began and has not ended: the event, and the stage that it suspended.

    *suspended* is None if the event changed nothing, like a wait within a wait.
    """

    event: int
    suspended: int | None


class LoopState(NamedTuple):
    """Where a training loop is. *automatic*: stages and step ends are found, not given.

    *optimizers* counts those that ran since the step began. *fetched*: a batch arrived since then.
    *batches* counts those that arrived and may still be trained with. *loader_ended*: their loader
    yields no more. Two assumptions are dropped when proven wrong: *one_batch_a_step* by many
    optimizers for one batch, and *gradients_tell* (a read or call with gradients off belongs to an
    evaluation) by a backward after it. *has_peers*: a backward waits for other ranks.
    *reads_itself*: the loop has no loader. *model_called*: since the last batch; None while
    unknown.
    """

    automatic: bool
    finds_steps: bool
    stage: int = OTHER
    frames: tuple[Frame, ...] = ()
    begun: bool = False
    optimizers: int = 0
    fetched: bool = False
    batches: int = 0
    loader_ended: bool = False
    one_batch_a_step: bool = True
    gradients_tell: bool = True
    has_peers: bool = False
    reads_itself: bool = False
    model_called: bool | None = None


# The state after an event, and the mark of the boundary at it: a stage with marks; None for none.
After = tuple[LoopState, int | None]


def push(state: LoopState, event: int, stage: int) -> LoopState:
    """Suspend the current stage for *stage* until the end of *event*."""
    return _opened(state, Frame(event, state.stage))._replace(stage=stage)


def pass_(state: LoopState, event: int) -> After:
    """Open *event* without a change of stage."""
    return _opened(state, Frame(event, None)), None


def _opened(state: LoopState, frame: Frame) -> LoopState:
    return state._replace(frames=(*state.frames[1 - MOST_FRAMES :], frame))


def pop(state: LoopState, event: int) -> tuple[LoopState, bool]:
    """End the last *event* and everything still open in it; return whether the stage changes.

    Nothing records the end of an optimizer that raised, or of a call that an interrupt cut short.
    """
    if not is_open(state, event):
        return state, False
    frames, stage, changed = list(state.frames), state.stage, False
    while True:
        frame = frames.pop()
        if frame.suspended is not None:
            stage, changed = frame.suspended, True
        if frame.event == event:
            return state._replace(stage=stage, frames=tuple(frames)), changed


def is_open(state: LoopState, event: int) -> bool:
    """Whether an *event* has not ended."""
    return any(frame.event == event for frame in state.frames)


def is_in(state: LoopState, event: int) -> bool:
    """Whether the last thing that began and has not ended is *event*."""
    return bool(state.frames) and state.frames[-1].event == event


def end_failed_optimizer(state: LoopState) -> LoopState:
    """Forget an optimizer that raised: no batch and no backward begins inside one.

    They do begin inside its closure, which has a frame of its own.
    """
    while is_in(state, e.OPTIMIZER_BEGINS):
        state, _ = pop(state, e.OPTIMIZER_BEGINS)
    return state


def is_before_model(state: LoopState) -> bool:
    """Whether a batch waits, or is being augmented, before the model is called with it."""
    return state.stage == FORWARD and state.model_called is False


def idle(state: LoopState) -> tuple[LoopState, int]:
    """Switch to `other` if stages are found and nothing is open: what follows has no name yet."""
    if state.automatic and not state.frames:
        state = state._replace(stage=OTHER)
    return state, state.stage


def use(state: LoopState) -> tuple[LoopState, int]:
    """Mark the pending batches as trained with."""
    if not state.batches:
        return state, 0
    used = USED | state.batches << BATCHES_SHIFT
    return state._replace(batches=0, loader_ended=False), used


def drop(state: LoopState) -> tuple[LoopState, int]:
    """Mark the pending batches of a loader that ended as unused: it served an evaluation.

    The loader's end is too early for this: a loop that reads ahead has yet to train with the last.
    """
    if not state.loader_ended:
        return state, 0
    unused = UNUSED | state.batches << BATCHES_SHIFT
    return state._replace(batches=0, loader_ended=False), unused


def begin_step(state: LoopState) -> LoopState:
    """Reset what is counted per step."""
    return state._replace(optimizers=0, fetched=False)


def next_step(state: LoopState, *, is_batch: bool) -> tuple[LoopState, int]:
    """Return the marks of a boundary at which a step, perhaps the first, visibly begins.

    A step ends by itself at the first fetch, forward or backward after an optimizer ran. This also
    works with several optimizers, and if a GradScaler skips a step. But a backward without a new
    batch may be that of a second optimizer, as in a GAN.
    """
    if not state.begun:
        return begin_step(state._replace(begun=True)), BEGIN
    if not state.optimizers or (state.fetched and state.one_batch_a_step and not is_batch):
        return state, 0
    return begin_step(state), COMPLETE if state.finds_steps else 0
