"""Writes a trace of a few steps with torch.profiler, when the operator orders one."""

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches
from rank_probe.measure.timeline import Timeline
from rank_probe.process.identity import Identity
from rank_probe.report.trace import own_directory
from rank_probe.torch_hooks.script_profiler import why_not
from rank_probe.wire.snapshot import LONGEST_TEXT, MOST_PROFILED_STEPS
from rank_probe.wire.text import printable

log = logging.getLogger("rank_probe")

# A larger trace is dropped: no viewer opens it, and a disk is soon full of them.
MOST_MIB: Final = 256
# What the trace calls its steps; the reader of traces looks for it.
STEPS: Final = "rankskew: {} steps from step {} on, rank {}"


class Profile:
    """One profile at a time, of the steps that an order names.

    The training thread starts and stops torch's profiler, at the ends of steps, and does nothing at
    all without an order. The rest is for the pusher's thread, which *soon* wakes.
    """

    def __init__(
        self, environment: Mapping[str, str], timeline: Timeline, soon: Callable[[], None]
    ) -> None:
        self._directory = environment.get("RANK_PROBE_TRACE", "")
        self._timeline = timeline
        self._soon = soon
        self._start = self._steps = self._rank = 0
        self._is_waiting = False
        self._running: Recording | None = None
        self._stopped: Recording | None = None
        self._said: dict[str, str] = {}

    def said(self) -> dict[str, str]:
        """Return what a snapshot says of the last order."""
        return self._said

    @property
    def is_running(self) -> bool:
        """Whether torch's profiler runs, which only the training thread can stop."""
        return self._running is not None

    @never_raise
    def look(self, order: object, me: Identity) -> None:
        """Write what was recorded, and take the *order* in an exporter's answer."""
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            self._write(stopped, me)
        if isinstance(order, dict) and self._running is None:
            start, steps = int(order["start"]), int(order["steps"])
            if str(start) != self._said.get("start"):
                self._begin(start, steps, me.rank)

    @never_raise
    def give_up(self, why: str) -> None:
        """End the profile of now without a trace."""
        running, self._running = self._running, None
        if running is not None or self._is_waiting:
            self._end(why)
        if running is not None:
            running.stop()

    def _begin(self, start: int, steps: int, rank: int) -> None:
        self._is_waiting = False
        self._said = {"start": str(start), "path": "", "problem": ""}
        if not (self._timeline.steps.totals().steps > 1 and 0 < steps <= MOST_PROFILED_STEPS):
            self._end(f"the rank has just started, or {steps} are not 1 to {MOST_PROFILED_STEPS}")
            return
        self._start, self._steps, self._rank = start, steps, rank
        self._is_waiting = True
        self._timeline.at_each_step(self._step_ended)

    @never_raise
    def _step_ended(self, number: int) -> bool:
        """Start or stop after step *number*, on the training thread; return whether to go on."""
        running = self._running
        if self._is_waiting and number >= self._start - 1:
            self._is_waiting = False
            self._record(number)
        elif running is not None and number >= self._start + self._steps - 1:
            self._running = None
            if problem := running.stop():
                self._end(problem)
            else:
                self._stopped = running
                self._soon()
        return self._is_waiting or self._running is not None

    def _record(self, number: int) -> None:
        if number >= self._start:
            self._end(f"step {self._start} was over when the rank heard of it")
        elif why := why_not():
            self._end(why)
        else:
            what = STEPS.format(self._steps, self._start, self._rank)
            try:
                self._running = Recording(self.give_up, what)
            except RuntimeError as error:
                self._end(f"torch's profiler does not start: {error}")

    def _end(self, problem: str, path: str = "") -> None:
        self._is_waiting = False
        said = {"path": path, "problem": problem}
        self._said = self._said | {key: printable(text, LONGEST_TEXT) for key, text in said.items()}
        if problem:
            log.warning("rank_probe: no profile: %s. Training continues.", problem)
        self._soon()

    def _write(self, stopped: "Recording", me: Identity) -> None:
        try:
            directory = Path(self._directory or own_directory()).absolute()
            directory.mkdir(parents=True, exist_ok=True)
            job_id = re.sub(r"[^A-Za-z0-9._-]", "_", me.job_id)
            path = directory / f"{job_id}-{me.attempt}-{me.rank}-step{self._start}.json"
            stopped.profiler.export_chrome_trace(str(path))
            mib = path.stat().st_size / 2**20
            if mib <= MOST_MIB:
                self._end("", str(path))
                return
            path.unlink()
            self._end(f"the trace has {mib:.0f} MiB, over {MOST_MIB}: order fewer steps")
        except (OSError, RuntimeError) as error:
            self._end(f"the trace cannot be written: {error}")


class Recording:
    """torch's profiler in the thread that makes it, from then on; RuntimeError if it refuses.

    Calls *give_up* before the script makes a profiler of its own: there can be only one.
    """

    def __init__(self, give_up: Callable[[str], object], what: str) -> None:
        import torch
        from torch.autograd import profiler

        device = "cuda" if torch.cuda.is_initialized() else None
        self.profiler = profiler.profile(use_device=device)
        self._mark = profiler.record_function(what)
        self._patches = Patches()

        def making(original: Callable[..., None]) -> Callable[..., None]:
            def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
                give_up("the script started a profiler of its own")
                original(self, *args, **kwargs)

            return __init__

        self.profiler.__enter__()
        self._patches.wrap(profiler.profile, "__init__", making)
        self._mark.__enter__()

    def stop(self) -> str:
        """Stop; return why that failed, empty if it did not. On a device this waits for it."""
        self._patches.undo()
        try:
            self._mark.__exit__(None, None, None)
            self.profiler.__exit__(None, None, None)
        except RuntimeError as error:
            return f"torch's profiler does not stop: {error}"
        return ""
