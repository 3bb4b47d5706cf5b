"""One thread's training loop: the tape that its hooks write, and the steps read from it."""

import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from types import CodeType

from rank_probe.guest.guard import never_raise
from rank_probe.measure import events
from rank_probe.measure.boundaries import BEGIN, COMPLETE, STAGE_BITS, UNCUT
from rank_probe.measure.interpreter import Interpreter
from rank_probe.measure.loop_state import LoopState, is_before_model
from rank_probe.measure.steps import Steps
from rank_probe.measure.tape import NOBODY, new_tape
from rank_probe.measure.work_units import WorkUnits


class Timeline:
    """Times the thread that creates it, or that `follow_training` chooses.

    With *automatic*, the stages and the ends of steps are found; otherwise the user gives them, and
    only backward and the waits are found. Batches are counted in *work*.
    """

    def __init__(
        self,
        *,
        automatic: bool,
        work: WorkUnits | None = None,
        now: Callable[[], int] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.work = work or WorkUnits()
        self.tape = new_tape(now)
        self._thread = self.tape.owner
        start = LoopState(automatic=automatic, finds_steps=automatic)
        self._interpreter = Interpreter(start)
        self._inserted: deque[int] = deque()
        self.steps = Steps(self._boundaries, now or time.perf_counter_ns, wall, self._settle)
        # Called if the wait in a backward could not be split from it: see torch_hooks.backward.
        self.uncut: Callable[[], None] = lambda: None
        # Called when DDP wraps a model, perhaps another one than before: see torch_hooks.backward.
        self.new_model: Callable[[], None] = lambda: None
        # Called when DDP's forward ends with gradients on; None if that says nothing.
        self.after_forward: Callable[[], object] | None = None
        # The code objects on the stack of the first backward, innermost first: the training loop.
        self.loop: tuple[CodeType, ...] = ()
        # The CUDA device of the first loss; the thread's current one may be another.
        self.trains_on: int | None = None
        # Whether collectives are called on streams of their own: see torch_hooks.parallel.
        self.exchanges_apart = False
        # The DataLoader that the loop iterates, while it lives.
        self.loader: Callable[[], object] = lambda: None
        self.after_first_step: Callable[[], None] | None = None
        # Interprets events as they happen, for those who cannot wait for the next fold.
        self._following = Interpreter(start)
        self._device_boundary: Callable[[int], object] | None = None
        self.tape.follower = never_raise(self._until_first_step)
        self.tape.on_long = never_raise(lambda: self.steps.fold(wait=False))

    @property
    def state(self) -> LoopState:
        """Where the loop is now."""
        self.steps.fold()
        return self._interpreter.state

    def spent(self) -> list[int]:
        """Return the nanoseconds in each stage so far, of the unfinished step too."""
        totals = self.steps.totals()
        spent = list(totals.spent)
        spent[self.state_at_fold.stage] += round(totals.elapsed_seconds * 1e9)
        return spent

    def also_tell(self, boundary: Callable[[int], object]) -> None:
        """Also call *boundary* with each mark from now on; call it from `after_first_step`."""
        self._device_boundary = boundary
        self.tape.follower = self._following.telling(boundary)

    def seen(self) -> set[int]:
        """Return the events that were seen so far."""
        self.steps.fold()
        return self._interpreter.seen()

    def follow_training(self) -> bool:
        """Time the calling thread from now on, unless a step was already timed on another one.

        Return whether it is timed now. Training need not run on the thread that started the probe.
        """
        if self.tape.owner != NOBODY and not self.steps.totals().steps:
            self._thread = get_ident()
            self._begin_anew()
        return self.tape.owner == get_ident()

    @property
    def state_at_fold(self) -> LoopState:
        """Where the loop was at the last fold."""
        return self._interpreter.state

    @property
    def is_before_model(self) -> bool:
        """Whether the loop is known to have a batch that it has not called its model with."""
        return is_before_model(self.state)

    def wait_for_peers(self) -> None:
        """Split the wait for other ranks from each backward, from now on; for any thread."""
        self._insert(events.HAS_PEERS)

    def name_what_it_reads(self) -> bool:
        """Count time from an optimizer to the next forward as `data`, in steps without a loader.

        Return whether this call changed that. It needs a forward that the hooks see, as with DDP
        and FSDP.
        """
        if self.state.reads_itself or events.FORWARD_BEGINS not in self.seen():
            return False
        self._insert(events.LOOP_READS_ITSELF)
        return True

    def disable(self) -> None:
        """Stop timing: the level of detail is off, or this is a forked child."""
        self.tape.owner = NOBODY

    def enable(self) -> None:
        """Time again after `disable`, from the next sign of training on."""
        if self.tape.owner == NOBODY:
            self._begin_anew()

    def restart(self) -> None:
        """Forget the step in progress, and its batches; for the timed thread."""
        if self.tape.owner == get_ident():
            self._begin_anew()

    def finish(self) -> None:
        """Commit the last step: its optimizer ran, and nothing follows."""
        self.tape.note(events.FINISH)

    def _begin_anew(self) -> None:
        self.tape.owner = NOBODY  # So that nothing is noted, and no batch measured, meanwhile.
        self.steps.fold()
        self.work.forget_batches()
        self._insert(events.RESTART)
        self.tape.owner = self._thread

    def _insert(self, code: int) -> None:
        """Take an event that belongs to no thread, ahead of those on the tape.

        Appending it to the tape would run the follower here, perhaps while the timed thread does.
        """
        self._inserted.append(code)
        self._following.insert(code)

    def _boundaries(self) -> bytes:
        while self._inserted:
            self._interpreter.take(self._inserted.popleft())
        taken = self.tape.take()
        return self._interpreter.read(taken) if taken else taken

    def _until_first_step(self, code: int) -> None:
        mark = self._following.take(code)
        if mark is None or not mark & COMPLETE:
            return
        self.tape.follower = None
        if self.after_first_step is not None:
            self.after_first_step()
        if self._device_boundary is not None:
            self._device_boundary(mark & STAGE_BITS | BEGIN)

    @never_raise
    def _settle(self, marks: list[int]) -> None:
        for mark in set(marks):  # Nearly all are the same.
            if mark & UNCUT:
                self.uncut()
        self.work.settle(marks)
