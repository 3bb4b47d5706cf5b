"""What the hooks and the manual API drive: one thread's stages, waits and step ends."""

import time
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from rank_probe.clocks import BEGIN, COMPLETE, RELEASE, StageClock
from rank_probe.guard import failures, never_raise
from rank_probe.stages import BACKWARD, DATA, EVAL, FORWARD, OPTIMIZER, OTHER, SYNC
from rank_probe.steps import Steps

# Of a call.
Arguments = tuple[Any, ...]
Named = dict[str, Any]

_NOBODY: Final = -1  # No thread has this identifier.

# Entries on the tape after which the training thread adds them up itself, at a step's end: it is
# many steps of a very fast loop, or there is no pusher.
LONG_TAPE: Final = 4096


class Timeline:
    """Turns what the training loop does into stage boundaries and steps.

    Belongs to the thread that made it; calls from other threads do nothing. Where entering may be
    declined (another thread, a wait within a wait), `enter_...` returns whether to leave.

    With *automatic* the step ends by itself: at the first fetch, forward or backward after an
    optimizer ran, which holds for several optimizers and for a step that a GradScaler skipped.
    Time outside any named stage is then `forward` from the batch to its backward, `other` else.

    No method raises. The boundaries of every step write the clock's moves and the guard out, to
    save the calls.
    """

    def __init__(
        self,
        *,
        automatic: bool,
        now: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.clock = StageClock(now)
        self.steps = Steps(self.clock.tape, now, wall)
        self._automatic = automatic
        self._automatic_steps = automatic
        self.after_first_step: Callable[[], None] | None = None
        self._thread = self._owner = get_ident()
        self._begun = False
        self._optimizer_ran = False
        self._optimizer_depth = 0
        self._closure_depth = -1  # how deep the running closure is; none runs: no depth is -1
        # Whether the calling thread, not the owner, runs the owner's backward: the autograd
        # engine has a thread for each CUDA device.
        self.in_engine: Callable[[], bool] = lambda: False
        # Called when backward must be cut at its root: see torch_backward.Cut.
        self.stay_at_the_root: Callable[[], None] = lambda: None
        # Called with an optimizer's arguments: returns others where a closure is among them.
        self.time_closure: Callable[[Arguments, Named], tuple[Arguments, Named] | None] = (
            lambda args, kwargs: None
        )
        # Whether a loader that is read with gradients off is an evaluation's.
        self._gradients_tell = True

    def disable(self) -> None:
        """Time nothing from here on: the level of detail is off, or this is a forked child."""
        self._owner = _NOBODY

    def enable(self) -> None:
        """Time again after `disable`, from the next sign of training on."""
        if self._owner == _NOBODY:
            # No boundary: another thread calls this, and the one that begins counting follows.
            self.clock.outer.clear()
            self.clock.stage = OTHER
            self._begun = self._optimizer_ran = False
            self._closure_depth = -1
            self._owner = self._thread

    def enter(self, stage: int) -> None:
        """Suspend the current stage for *stage*."""
        try:
            if get_ident() == self._owner:
                clock = self.clock
                if not self._begun:
                    self._begin()
                clock.outer.append(clock.stage)
                clock.stage = stage
                clock.note((stage, clock.now()))
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.enter")

    def leave(self) -> None:
        """End what the last `enter` of this thread began."""
        try:
            if get_ident() == self._owner:
                clock = self.clock
                clock.stage = stage = clock.outer.pop() if clock.outer else OTHER
                clock.note((stage, clock.now()))
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.leave")

    @never_raise
    def enter_part(self, stage: int) -> bool:
        """A patch finds that *stage* begins; False where it goes on already, or a wait does.

        Counting does not begin with it: the time before the first batch belongs to no step.
        """
        if get_ident() != self._owner or self.clock.stage in (stage, SYNC):
            return False
        self.clock.enter(stage)
        return True

    @never_raise
    def enter_wait(self) -> bool:
        """Begin an exposed wait for other ranks, unless one is being timed already."""
        clock = self.clock
        if clock.stage == SYNC or (get_ident() != self._owner and not self._in_own_backward()):
            return False
        clock.enter(SYNC)
        return True

    @never_raise
    def leave_wait(self, release: bool = True) -> None:
        """End the wait; *release* means that all ranks continue together."""
        self.clock.leave(RELEASE if release else 0)

    def enter_fetch(self) -> bool:
        """A data loader is asked for a batch; declined in an `eval` that was entered."""
        try:
            clock = self.clock
            if get_ident() != self._owner or (clock.stage == EVAL and clock.outer):
                return False
            if clock.stage == OPTIMIZER:  # Its step raised and the user carried on.
                clock.unwind(self._optimizer_depth)
            marks = self._marks_of_next() if self._optimizer_ran or not self._begun else 0
            clock.outer.append(clock.stage)
            clock.stage = DATA
            clock.note((DATA | marks, clock.now()))
            return True
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.enter_fetch")
            return False

    def leave_fetch(self, forward_follows: bool) -> None:
        """The batch is there, or the loader is at its end and none follows."""
        try:
            clock = self.clock
            stage = clock.outer.pop() if clock.outer else OTHER
            if self._automatic and not clock.outer:
                stage = FORWARD if forward_follows else OTHER
            clock.stage = stage
            clock.note((stage, clock.now()))
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.leave_fetch")

    @never_raise
    def begin_forward(self) -> None:
        """The root module is called with gradients on: the forward pass, until backward."""
        if get_ident() == self._owner:
            clock = self.clock
            marks = self._marks_of_next()
            if self._automatic and len(clock.outer) in (0, self._closure_depth):
                clock.switch(FORWARD, marks)
            elif marks:
                clock.switch(clock.stage, marks)

    @never_raise
    def begin_evaluation(self) -> bool:
        """A loader is read with gradients off: `eval`, until the next batch, forward or backward.

        False within a stage that was entered, and once a backward has come out of such a batch.
        """
        clock = self.clock
        if not self._gradients_tell or clock.outer or get_ident() != self._owner:
            return False
        if clock.stage != EVAL:
            clock.switch(EVAL, self._marks_of_next())
        return True

    def enter_backward(self) -> bool:
        """The autograd engine is started; False if it already runs (a nested backward)."""
        try:
            clock = self.clock
            if clock.stage in (BACKWARD, SYNC) or get_ident() != self._owner:
                return False
            if clock.stage == EVAL and not clock.outer:
                self._gradients_tell = False  # It is how this loop fetches what it trains on.
            marks = self._marks_of_next() if self._optimizer_ran or not self._begun else 0
            clock.outer.append(clock.stage)
            clock.stage = BACKWARD
            clock.note((BACKWARD | marks, clock.now()))
            return True
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.enter_backward")
            return False

    def gradients_ready(self) -> None:
        """The last local gradient exists: what is left of backward is waiting for the others.

        Called by the autograd engine, on whichever thread ran its last node; the owner is blocked
        inside backward meanwhile.
        """
        try:
            clock = self.clock
            if clock.stage == BACKWARD:
                clock.stage = SYNC
                clock.note((SYNC, clock.now()))
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.gradients_ready")

    def leave_backward(self) -> bool:
        """The autograd engine returned; say whether `gradients_ready` was called."""
        try:
            clock = self.clock
            waited = clock.stage == SYNC
            stage = clock.outer.pop() if clock.outer else OTHER
            if self._automatic:
                if not clock.outer:
                    stage = OTHER
                elif len(clock.outer) == self._closure_depth:
                    stage = OPTIMIZER  # What is left of the closure is not forward again.
            clock.stage = stage
            clock.note((stage | RELEASE if waited else stage, clock.now()))
            return waited
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.leave_backward")
            return False

    def enter_optimizer(
        self, _optimizer: object = None, args: Arguments = (), kwargs: Named | None = None
    ) -> tuple[Arguments, Named] | None:
        """An optimizer's step begins; takes what torch's step hooks are given.

        Returns what they may return, other arguments for the step, where it is given a closure.
        """
        try:
            if get_ident() == self._owner:
                clock = self.clock
                if clock.stage != OPTIMIZER:  # An optimizer may wrap another.
                    self._optimizer_depth = len(clock.outer)
                clock.outer.append(clock.stage)
                clock.stage = OPTIMIZER
                clock.note((OPTIMIZER, clock.now()))
                # The first argument is the optimizer itself.
                if kwargs or len(args) > 1:
                    return self.time_closure(args, kwargs or {})
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.enter_optimizer")
        return None

    @never_raise
    def enter_closure(self) -> bool:
        """An optimizer's step has its loss computed: a forward pass, until the backward in it."""
        if self.clock.stage != OPTIMIZER or get_ident() != self._owner:
            return False
        self.clock.enter(FORWARD)
        self._closure_depth = self.clock.depth
        return True

    @never_raise
    def leave_closure(self) -> None:
        """The optimizer has its loss and goes on."""
        self._closure_depth = -1
        self.clock.leave()

    def leave_optimizer(self, *_: object) -> None:
        """An optimizer's step is done; the training step ends when the next thing begins."""
        try:
            clock = self.clock
            if clock.stage == OPTIMIZER and get_ident() == self._owner:
                stage = clock.outer.pop() if clock.outer else OTHER
                if self._automatic and not clock.outer:
                    stage = OTHER
                clock.stage = stage
                clock.note((stage, clock.now()))
                self._optimizer_ran = True
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.leave_optimizer")

    @never_raise
    def find_steps(self, automatic: bool) -> None:
        """Say whether steps end by themselves, or where `complete_step` is called."""
        if get_ident() == self._owner:
            self._automatic_steps = self._automatic and automatic
            self._optimizer_ran = False

    @never_raise
    def complete_step(self) -> None:
        """The user says that a step is complete; from then on only the user does."""
        if get_ident() == self._owner:
            self._automatic_steps = False
            self._optimizer_ran = False
            if not self._begun:
                self._begin()
            self.clock.switch(self.clock.stage, COMPLETE)
            self._after_step()

    @never_raise
    def finish(self) -> None:
        """Commit a step whose optimizer ran but which nothing followed."""
        if get_ident() == self._owner and (marks := self._marks_of_next()):
            self.clock.switch(self.clock.stage, marks)

    def _in_own_backward(self) -> bool:
        return self.clock.stage == BACKWARD and self._owner != _NOBODY and self.in_engine()

    def _marks_of_next(self) -> int:
        """Return the marks of a boundary at which a step, or the first one, visibly begins."""
        if self._optimizer_ran:
            self._optimizer_ran = False
            if self._automatic_steps:
                if self.after_first_step is not None or len(self.clock.tape) > LONG_TAPE:
                    self._after_step()
                return COMPLETE
        elif not self._begun:
            self._begun = True
            return BEGIN
        return 0

    def _begin(self) -> None:
        self._begun = True
        self.clock.switch(self.clock.stage, BEGIN)

    def _after_step(self) -> None:
        if len(self.clock.tape) > LONG_TAPE:
            self.steps.fold(wait=False)
        if self.after_first_step is not None:
            call, self.after_first_step = self.after_first_step, None
            call()
