"""A check's row, and what the profiler and a clock saw; none of this needs a GPU."""

from collections.abc import Sequence
from typing import Any, Final

from benchmarks.gpu_check.training import RANGE
from rank_probe.measure.ledger import StepTotals
from rank_probe.wire.stages import STAGES

Row = dict[str, Any]
Stages = dict[str, float]

WITHIN: Final = 0.03
# What the gaps between kernels at a stage's two ends may add, whatever its length.
SLACK_MS: Final = 0.05


# A check's row, and what the profiler saw; none of this needs a GPU.


def near(what: str, found: float, expected: float) -> Row:
    """Check that *found* ms are *expected* ms to 3 %."""
    allowed = max(WITHIN * expected, SLACK_MS)
    return _row(what, "ms", expected, found, allowed, abs(found - expected) <= allowed)


def at_most(what: str, unit: str, found: float, limit: float) -> Row:
    """Check that *found* is no more than *limit*."""
    return _row(what, unit, None, found, limit, found <= limit)


def equal(what: str, found: float, expected: float) -> Row:
    """Check a count."""
    return _row(what, "", expected, found, None, found == expected)


def told(what: str, *, passed: bool) -> Row:
    """Return a row without a figure."""
    return _row(what, "", None, None, None, passed)


def _row(
    what: str,
    unit: str,
    expected: float | None,
    found: float | None,
    allowed: float | None,
    passed: bool,
) -> Row:
    return {
        "check": what,
        "unit": unit,
        "expected": expected,
        "found": found,
        "off by at most": allowed,
        "passed": "yes" if passed else "NO",
    }


def exit_code(rows: Sequence[Row]) -> int:
    """Return 1 if a check failed, or if there was none."""
    return 0 if rows and all(row["passed"] == "yes" for row in rows) else 1


def profiled_ms(trace: dict[str, Any]) -> Stages:
    """Return ms of device work by stage in a chrome *trace* of torch.profiler.

    A kernel belongs to the `stage:` range of the CPU in which it was launched, by any thread; one
    on another stream than the optimizer's belongs to `sync`. A range's work lasts from the
    beginning of its first kernel to the end of its last one.
    """
    events = trace["traceEvents"]
    ranges = [each for each in events if each.get("name", "").startswith(RANGE)]
    ranges = [each for each in ranges if each.get("cat") == "user_annotation"]
    launched = {
        each["args"]["correlation"]: each["ts"]
        for each in events
        if each.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in each["args"]
    }
    kernels = sorted(
        (each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")),
        key=lambda each: each["ts"],
    )
    placed: list[tuple[int, str, dict[str, Any]]] = []
    for kernel in kernels:
        at = launched.get(kernel["args"]["correlation"], -1)
        for number, each in enumerate(ranges):
            if each["ts"] <= at <= each["ts"] + each["dur"]:
                placed.append((number, each["name"].removeprefix(RANGE), kernel))
    streams = [each["args"]["stream"] for _, stage, each in placed if stage == "optimizer"]
    spans: dict[tuple[int, str], list[float]] = {}
    for number, stage, kernel in placed:
        where = stage if kernel["args"]["stream"] in streams[-1:] else "sync"
        ended = kernel["ts"] + kernel["dur"]
        span = spans.setdefault((number, where), [kernel["ts"], ended])
        span[1] = max(span[1], ended)
    found: Stages = {}
    for (_, stage), (began, ended) in spans.items():
        found[stage] = found.get(stage, 0.0) + (ended - began) / 1e3
    return found


def per_step(before: StepTotals, after: StepTotals) -> Stages:
    """Return ms per step by stage between two readings of a clock."""
    steps = max(after.steps - before.steps, 1)
    return {
        stage: (late - early) / 1e6 / steps
        for stage, early, late in zip(STAGES, before.nanoseconds, after.nanoseconds, strict=True)
    }
