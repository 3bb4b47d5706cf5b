"""Traces of torch.profiler for tests: two steps, with the operations that a test names."""

from collections.abc import Mapping
from typing import Any

STEP_MICROSECONDS = 50_000.0


def cpu_trace(milliseconds: Mapping[str, float], calls: int = 1) -> dict[str, Any]:
    """Return a trace of two steps; each operator is called *calls* times a step, in a row."""
    events: list[dict[str, Any]] = [_mark(2)]
    at = 0.0
    for _ in range(2 * calls):
        for name, each in milliseconds.items():
            events.append(_event("cpu_op", name, at, 1e3 * each / calls))
            at += 1e3 * each / calls
    return {"traceEvents": events}


def device_trace(milliseconds: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Return a trace of two steps with kernels, by their operator and their own name."""
    events: list[dict[str, Any]] = [_mark(2)]
    for number, ((operator, kernel), each) in enumerate(milliseconds.items()):
        events.append(_event("cpu_op", operator, 0.0, 1.0, number))
        for _ in range(2):
            events.append(_event("kernel", kernel, 0.0, 1e3 * each, number))
    return {"traceEvents": events}


def _mark(steps: int) -> dict[str, Any]:
    name = f"rankskew: {steps} steps from step 9 on, rank 1"
    return _event("user_annotation", name, 0.0, steps * STEP_MICROSECONDS)


def _event(kind: str, name: str, at: float, microseconds: float, number: int = 0) -> dict[str, Any]:
    args = {"External id": number}
    return {
        **{"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1},
        **{"ts": at, "dur": microseconds, "args": args},
    }
