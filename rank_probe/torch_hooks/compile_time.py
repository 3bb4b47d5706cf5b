"""How long torch.compile has taken, read where Dynamo keeps it."""

import sys


class CompileTime:
    """Seconds in torch.compile so far, as Dynamo sums them up; Dynamo uses the wall clock.

    Resetting Dynamo resets its sum. This goes unnoticed if as much is compiled again before the
    next reading.
    """

    def __init__(self) -> None:
        self._before_reset = 0.0
        self._last = 0.0

    def seconds(self) -> float | None:
        """Return the sum; None while nothing was compiled. Imports nothing; for one thread."""
        now = _so_far(sys.modules.get("torch._dynamo.utils"))
        if now < self._last:
            self._before_reset += self._last
        self._last = now
        return self._before_reset + now or None


def _so_far(dynamo: object) -> float:
    # "entire frame" includes the compilers that it calls; a late backward compilation does not.
    spent = getattr(dynamo, "cumulative_time_spent_ns", None)
    if spent is not None:
        total: float = spent.get("entire_frame_compile", 0) + spent.get(
            "entire_backward_compile", 0
        )
        return total / 1e9
    # Before torch 2.6, by frame and in seconds; that of a late backward has no name of its own.
    frames = list(getattr(dynamo, "frame_phase_timing", {}).values())
    return float(sum(frame.get("entire_frame_compile", 0.0) for frame in frames))
