"""Driven by the hooks and the manual API: one thread's stages, waits and step ends."""

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

# With more entries on the tape, the training thread sums them up itself at the end of a step: the
# loop is very fast, or there is no pusher.
LONG_TAPE: Final = 4096


class Timeline:
    """Turns the events of the training loop into stage boundaries and steps.

    Belongs to the thread that created it; calls from other threads do nothing. `enter_...` may
    decline (another thread, a wait within a wait); it returns whether to call the matching leave.

    With *automatic*, the step ends by itself: at the first fetch, forward or backward after an
    optimizer ran. This also works with several optimizers, and if a GradScaler skips a step. Time
    outside any named stage is `forward` from the batch to its backward, otherwise `other`.

    No method raises. The methods called in every step inline the clock's moves and the guard, to
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
        self._closure_depth = -1  # depth of the running closure; -1: none runs
        # Whether the calling thread runs the owner's backward without being the owner: the autograd
        # engine has a thread for each CUDA device.
        self.in_engine: Callable[[], bool] = lambda: False
        # Called if backward must be cut at its root: see torch_backward.Cut.
        self.stay_at_the_root: Callable[[], None] = lambda: None
        # Called with an optimizer's arguments; returns others if they contain a closure.
        self.time_closure: Callable[[Arguments, Named], tuple[Arguments, Named] | None] = (
            lambda args, kwargs: None
        )
        # Whether a loader that is read with gradients off belongs to an evaluation.
        self._gradients_tell = True

    def disable(self) -> None:
        """Stop timing: the level of detail is off, or this is a forked child."""
        self._owner = _NOBODY

    def enable(self) -> None:
        """Time again after `disable`, from the next sign of training on."""
        if self._owner == _NOBODY:
            # No boundary here: another thread calls this, and the next boundary starts the
            # counting.
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
        """A patch sees *stage* begin; False if it is already running, or a wait is.

        Counting does not begin here: the time before the first batch belongs to no step.
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
        """A data loader is asked for a batch; declined inside an entered `eval`."""
        try:
            clock = self.clock
            if get_ident() != self._owner or (clock.stage == EVAL and clock.outer):
                return False
            if clock.stage == OPTIMIZER:  # Its step raised, and the user carried on.
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
        """The batch is there, or the loader has reached its end."""
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
        """The root module is called with gradients on: forward begins, and lasts until backward."""
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

        False inside an entered stage, and once such a batch has led to a backward.
        """
        clock = self.clock
        if not self._gradients_tell or clock.outer or get_ident() != self._owner:
            return False
        if clock.stage != EVAL:
            clock.switch(EVAL, self._marks_of_next())
        return True

    def enter_backward(self) -> bool:
        """The autograd engine starts; False if it is already running (a nested backward)."""
        try:
            clock = self.clock
            if clock.stage in (BACKWARD, SYNC) or get_ident() != self._owner:
                return False
            if clock.stage == EVAL and not clock.outer:
                self._gradients_tell = False  # This loop fetches with gradients off.
            marks = self._marks_of_next() if self._optimizer_ran or not self._begun else 0
            clock.outer.append(clock.stage)
            clock.stage = BACKWARD
            clock.note((BACKWARD | marks, clock.now()))
            return True
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.enter_backward")
            return False

    def gradients_ready(self) -> None:
        """The last local gradient exists: the rest of backward is waiting for other ranks.

        Called by the autograd engine, on the thread that ran its last node; meanwhile the owner is
        blocked inside backward.
        """
        try:
            clock = self.clock
            if clock.stage == BACKWARD:
                clock.stage = SYNC
                clock.note((SYNC, clock.now()))
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.gradients_ready")

    def leave_backward(self) -> bool:
        """The autograd engine returned; return whether `gradients_ready` was called."""
        try:
            clock = self.clock
            waited = clock.stage == SYNC
            stage = clock.outer.pop() if clock.outer else OTHER
            if self._automatic:
                if not clock.outer:
                    stage = OTHER
                elif len(clock.outer) == self._closure_depth:
                    stage = OPTIMIZER  # The rest of the closure is not another forward.
            clock.stage = stage
            clock.note((stage | RELEASE if waited else stage, clock.now()))
            return waited
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call
            failures.note("Timeline.leave_backward")
            return False

    def enter_optimizer(
        self, _optimizer: object = None, args: Arguments = (), kwargs: Named | None = None
    ) -> tuple[Arguments, Named] | None:
        """An optimizer's step begins; takes the arguments of torch's step hooks.

        Returns what such hooks may return: other arguments for the step, if they contain a closure.
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
        """An optimizer's step computes its loss: a forward pass, until the backward in it."""
        if self.clock.stage != OPTIMIZER or get_ident() != self._owner:
            return False
        self.clock.enter(FORWARD)
        self._closure_depth = self.clock.depth
        return True

    @never_raise
    def leave_closure(self) -> None:
        """The optimizer has its loss and continues."""
        self._closure_depth = -1
        self.clock.leave()

    def leave_optimizer(self, *_: object) -> None:
        """An optimizer's step has ended; the training step ends when something else begins."""
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
        """Set whether steps end by themselves, or where `complete_step` is called."""
        if get_ident() == self._owner:
            self._automatic_steps = self._automatic and automatic
            self._optimizer_ran = False

    @never_raise
    def complete_step(self) -> None:
        """The user completes a step; from now on only the user does."""
        if get_ident() == self._owner:
            self._automatic_steps = False
            self._optimizer_ran = False
            if not self._begun:
                self._begin()
            self.clock.switch(self.clock.stage, COMPLETE)
            self._after_step()

    @never_raise
    def finish(self) -> None:
        """Commit the last step: its optimizer ran, and nothing followed."""
        if get_ident() == self._owner and (marks := self._marks_of_next()):
            self.clock.switch(self.clock.stage, marks)

    def _in_own_backward(self) -> bool:
        return self.clock.stage == BACKWARD and self._owner != _NOBODY and self.in_engine()

    def _marks_of_next(self) -> int:
        """Return the marks for a boundary at which a step, perhaps the first, visibly begins."""
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
