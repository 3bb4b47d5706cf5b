"""Where a training loop is: the stage, what is open around it, and the step so far."""

from typing import Final, NamedTuple

from rank_probe.measure import events as e
from rank_probe.measure.boundaries import BATCHES_SHIFT, BEGIN, COMPLETE, UNUSED, USED
from rank_probe.wire.stages import FORWARD, OTHER

# More optimizers than this after one batch are not those of one step, as in a GAN: the loop takes
# many steps with each batch.
MOST_OPTIMIZERS: Final = 8
# A loop that never trains has no more batches than this that wait to be used.
MOST_BATCHES: Final = 64
# Of more that began, the outermost are forgotten: a loop may never end what it begins in each step.
MOST_FRAMES: Final = 64


class Frame(NamedTuple):
    """Something that began and has not ended: the event, and the stage that it suspended.

    *suspended* is None if the event changed nothing, like a wait within a wait.
    """

    event: int
    suspended: int | None


class LoopState(NamedTuple):
    """Where a training loop is. *automatic*: stages and step ends are found, not given.

    *optimizers* is how many ran since the step began, *fetched* whether a batch arrived since, and
    *batches* how many arrived and may still be trained with; *loader_ended*: no more of them come
    from their loader. Two beliefs are dropped when they turn out wrong: *one_batch_a_step*, after
    many optimizers for one batch, and *gradients_tell* (what is read or called with gradients off
    belongs to an evaluation), after its backward. *has_peers*: a backward waits for other ranks.
    *reads_itself*: the loop has no loader. *model_called*: since the last batch; None while the
    loop has not shown it.
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
    """Suspend the stage for *stage*, until what *event* began ends."""
    return _opened(state, Frame(event, state.stage))._replace(stage=stage)


def pass_(state: LoopState, event: int) -> After:
    """Something begins that changes nothing."""
    return _opened(state, Frame(event, None)), None


def _opened(state: LoopState, frame: Frame) -> LoopState:
    return state._replace(frames=(*state.frames[1 - MOST_FRAMES :], frame))


def pop(state: LoopState, event: int) -> tuple[LoopState, bool]:
    """End the last *event*, and all in it that never ended; return whether that changes the stage.

    An optimizer that raised does not say so, nor does what an interrupt of the user cut short.
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

    Its closure is different.
    """
    while is_in(state, e.OPTIMIZER_BEGINS):
        state, _ = pop(state, e.OPTIMIZER_BEGINS)
    return state


def is_before_model(state: LoopState) -> bool:
    """Whether there is a batch, and the model is not called yet: it is augmented, or waits."""
    return state.stage == FORWARD and state.model_called is False


def idle(state: LoopState) -> tuple[LoopState, int]:
    """What follows has no name yet."""
    if state.automatic and not state.frames:
        state = state._replace(stage=OTHER)
    return state, state.stage


def use(state: LoopState) -> tuple[LoopState, int]:
    """The batches that are there are trained with."""
    if not state.batches:
        return state, 0
    used = USED | state.batches << BATCHES_SHIFT
    return state._replace(batches=0, loader_ended=False), used


def drop(state: LoopState) -> tuple[LoopState, int]:
    """The batches of a loader that ended were not trained with: it was that of an evaluation.

    Not at its end: a loop that reads ahead trains with its last batches after that.
    """
    if not state.loader_ended:
        return state, 0
    unused = UNUSED | state.batches << BATCHES_SHIFT
    return state._replace(batches=0, loader_ended=False), unused


def begin_step(state: LoopState) -> LoopState:
    """A step begins."""
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
