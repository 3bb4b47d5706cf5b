"""What the hooks and the manual API drive: one thread's stages, waits and step ends."""

from collections.abc import Callable
from threading import get_ident

from rank_probe.clocks import StageClock
from rank_probe.guard import never_raise
from rank_probe.stages import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, SYNC
from rank_probe.steps import Steps

_NOBODY = -1  # No thread has this identifier.


class Timeline:
    """Turns what the training loop does into stage boundaries and steps.

    Belongs to the thread that made it; calls from other threads do nothing. Where entering may be
    declined (another thread, a wait within a wait), `enter_...` returns whether to leave.

    With *automatic* the step ends by itself: at the first fetch, forward or backward after an
    optimizer ran, which holds for several optimizers and for a step that a GradScaler skipped.
    Time outside any named stage is then `forward` from the batch to its backward, `other` else.
    """

    def __init__(self, *, automatic: bool, clock: StageClock | None = None) -> None:
        self.clock = clock or StageClock()
        self.steps = Steps(self.clock)
        self._automatic = automatic
        self._automatic_steps = automatic
        self.after_first_step: Callable[[], None] | None = None
        self._owner = get_ident()
        self._begun = False
        self._optimizer_ran = False
        self._optimizer_depth = 0

    def disable(self) -> None:
        """Time nothing from here on; for a forked child, which is not a rank."""
        self._owner = _NOBODY

    @never_raise
    def enter(self, stage: int) -> None:
        """Suspend the current stage for *stage*."""
        if get_ident() == self._owner:
            if not self._begun:
                self._begin()
            self.clock.enter(stage)

    @never_raise
    def leave(self) -> None:
        """End what the last `enter` of this thread began."""
        if get_ident() == self._owner:
            self.clock.leave()

    @never_raise
    def enter_wait(self) -> bool:
        """Begin an exposed wait for other ranks, unless one is being timed already."""
        if self.clock.stage == SYNC or get_ident() != self._owner:
            return False
        self.clock.enter(SYNC)
        return True

    @never_raise
    def leave_wait(self, *, release: bool = True) -> None:
        """End the wait; *release* says that all ranks were let go together."""
        self.clock.leave()
        if release:
            self.steps.release()

    @never_raise
    def enter_fetch(self) -> bool:
        """A data loader is asked for a batch."""
        if get_ident() != self._owner:
            return False
        if self.clock.stage == OPTIMIZER:  # Its step raised and the user carried on.
            self.clock.unwind(self._optimizer_depth)
        self._next_step_begins()
        self.clock.enter(DATA)
        return True

    @never_raise
    def leave_fetch(self, *, forward_follows: bool) -> None:
        """The batch is there, or the loader is at its end and none follows."""
        self.clock.leave()
        if self._automatic:
            self.clock.rename(FORWARD if forward_follows else OTHER)

    @never_raise
    def begin_forward(self) -> None:
        """The root module is called with gradients on: the forward pass, until backward."""
        if get_ident() == self._owner:
            self._next_step_begins()
            if self._automatic:
                self.clock.switch(self.clock.stage)
                self.clock.rename(FORWARD)

    @never_raise
    def enter_backward(self) -> bool:
        """The autograd engine is started; False if it already runs (a nested backward)."""
        if self.clock.stage in (BACKWARD, SYNC) or get_ident() != self._owner:
            return False
        self._next_step_begins()
        self.clock.enter(BACKWARD)
        return True

    @never_raise
    def gradients_ready(self) -> None:
        """The last local gradient exists: what is left of backward is waiting for the others.

        Called by the autograd engine, on whichever thread ran its last node; the owner is blocked
        inside backward meanwhile.
        """
        if self.clock.stage == BACKWARD:
            self.clock.switch(SYNC)

    @never_raise
    def leave_backward(self) -> None:
        """The autograd engine returned."""
        waited = self.clock.stage == SYNC
        self.clock.leave()
        if waited:
            self.steps.release()
        if self._automatic:
            self.clock.rename(OTHER)

    @never_raise
    def enter_optimizer(self, *_: object) -> None:
        """An optimizer's step begins; takes what torch's step hooks are given."""
        if get_ident() == self._owner:
            if self.clock.stage != OPTIMIZER:  # An optimizer may wrap another.
                self._optimizer_depth = self.clock.depth
            self.clock.enter(OPTIMIZER)

    @never_raise
    def leave_optimizer(self, *_: object) -> None:
        """An optimizer's step is done; the training step ends when the next thing begins."""
        if get_ident() == self._owner and self.clock.stage == OPTIMIZER:
            self.clock.leave()
            self._optimizer_ran = True

    @never_raise
    def complete_step(self) -> None:
        """The user says that a step is complete; from then on only the user does."""
        if get_ident() == self._owner:
            self._automatic_steps = False
            self._optimizer_ran = False
            if not self._begun:
                self._begin()
            self._complete()

    @never_raise
    def finish(self) -> None:
        """Commit a step whose optimizer ran but which nothing followed."""
        if get_ident() == self._owner:
            self._next_step_begins()

    def _next_step_begins(self) -> None:
        if self._optimizer_ran:
            self._optimizer_ran = False
            if self._automatic_steps:
                self._complete()
        elif not self._begun:
            self._begin()

    def _begin(self) -> None:
        self._begun = True
        self.steps.begin()

    def _complete(self) -> None:
        self.steps.complete()
        if self.after_first_step is not None:
            call, self.after_first_step = self.after_first_step, None
            call()
