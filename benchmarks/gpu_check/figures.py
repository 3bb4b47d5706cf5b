"""A check's row, what the profiler and a clock saw, and the tables; none of this needs a GPU."""

from collections.abc import Sequence
from typing import Any, Final

from benchmarks.gpu_check.training import RANGE
from benchmarks.report import Row, digits, number
from generators.markdown import table
from rank_probe.measure.ledger import StepTotals
from rank_probe.wire.stages import STAGES

Stages = dict[str, float]

WITHIN: Final = 0.03
# What the gaps between kernels at a stage's two ends may add, whatever its length.
SLACK_MS: Final = 0.05
RUNS = ("plain", "late peer", "slow backward", "late loader", "hidden loader", "graphed callables")
SHOWN = ("forward", "backward", "sync", "optimizer")
WRAPS = ("torch.compile", "torch.compile, CUDA graphs", "FSDP2")
MOST_WORDS = 10
PARTS = ("forward, backward and sync", "optimizer")


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

    A kernel belongs to the CPU's `stage:` range during which any thread launched it. A kernel on a
    stream other than the optimizer's belongs to `sync`. A range's work lasts from the start of its
    first kernel to the end of its last one.
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
        for position, each in enumerate(ranges):
            if each["ts"] <= at <= each["ts"] + each["dur"]:
                placed.append((position, each["name"].removeprefix(RANGE), kernel))
    streams = [each["args"]["stream"] for _, stage, each in placed if stage == "optimizer"]
    spans: dict[tuple[int, str], list[float]] = {}
    for position, stage, kernel in placed:
        where = stage if kernel["args"]["stream"] in streams[-1:] else "sync"
        ended = kernel["ts"] + kernel["dur"]
        span = spans.setdefault((position, where), [kernel["ts"], ended])
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


def stages_table(result: Row) -> str:
    """Return, for each run and stage, torch.profiler's ms and the device clock's."""
    found = {row["check"]: row for row in result["rows"]}
    cells = [(run, *(_pair(found.get(f"{run}: {stage}")) for stage in SHOWN)) for run in RUNS]
    return f"{_machine(result)}\n\n{table(('run', *SHOWN), cells)}"


def _pair(row: Row | None) -> str:
    return "" if row is None else f"{row['expected']:.1f}, {row['found']:.1f}"


def wraps_table(result: Row) -> str:
    """Return torch.profiler's ms and the device clock's for each way to wrap the model that ran."""
    found = {row["check"]: row for row in result["rows"]}
    cells = [
        (wrap, *(_pair(found.get(f"{wrap}: {stage}")) for stage in PARTS))
        for wrap in WRAPS
        if f"{wrap}: optimizer" in found
    ]
    return table(("model", *PARTS), cells)


def verdict(result: Row) -> str:
    """Return how many checks passed, and the figures of those that did not."""
    made = result["rows"]
    missed = [row for row in made if row["passed"] != "yes"]
    told = [_missed(row) for row in missed]
    text = f"{len(made) - len(missed)} of {len(made)} checks passed, to {WITHIN * 100:.0f} %."
    return f"{text}\nNot passed: {'; '.join(told)}." if told else text


def _missed(row: Row) -> str:
    if row["found"] is None:  # An error of torch: its first words say enough.
        return f"{' '.join(row['check'].split()[:MOST_WORDS])} ..."
    found, unit = number(row["found"]), row["unit"]
    if row["expected"] is None:
        return f"{row['check']}: {found} {unit} instead of at most {number(row['off by at most'])}"
    return f"{row['check']}: {found} {unit} instead of {number(row['expected'])}"


def ranks_table(result: Row) -> str:
    """Return what the page said of ranks that share a GPU."""
    header = ("GPU", "model", "planted", "named", "after s", "page")
    cells = [
        tuple(number(row[name]) if name == "after s" else row[name] for name in header)
        for row in result["rows"]
    ]
    return table(header, cells)


def readings_table(result: Row) -> str:
    """Return the exporter's means beside nvidia-smi's, in nvidia-smi's units."""
    who = ("ours", "nvidia-smi")  # A GPU need not have every reading.
    cells = [
        (f"`{row['reading']}`", *("" if row[each] is None else digits(row[each]) for each in who))
        for row in result["rows"]
    ]
    return f"{_machine(result)}\n\n{table(('reading', 'exporter', 'nvidia-smi'), cells)}"


def _machine(result: Row) -> str:
    """Return the machine that *result* was measured on, in words."""
    machine = result["machine"]
    return f"On one {machine['GPU']}, {machine['cpus']} CPUs, torch {machine['torch']}."
