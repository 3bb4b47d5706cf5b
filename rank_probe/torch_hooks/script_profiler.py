"""Tells whether the script has a profiler of its own, beside which none may run."""

import sys


def why_not() -> str:
    """Return why torch's profiler must not be started now, on this thread; empty if it may.

    One of the script that warms up is not on, but torch dies if another one runs meanwhile; all
    that shows it is that torch counts its steps, for one that was stopped and not left, too.
    """
    autograd = sys.modules["torch.autograd"]
    is_on = getattr(autograd, "_profiler_enabled", None)
    tracker = getattr(getattr(autograd, "profiler", None), "KinetoStepTracker", None)
    counted = getattr(tracker, "_step_dict", None)
    if is_on is None or counted is None:
        return "this torch does not say whether the script has a profiler of its own"
    return "the script has a profiler of its own" if is_on() or "ProfilerStep" in counted else ""
