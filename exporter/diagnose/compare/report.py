"""A comparison as text, Markdown or JSON."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Final

from exporter.diagnose.compare.changes import Change
from exporter.diagnose.compare.comparison import (
    CANNOT_TELL,
    IMPROVED,
    NO_WORSE,
    NO_WORSE_RATIO,
    WORSE,
    Comparison,
    LateChange,
)
from exporter.diagnose.compare.side import LateRank, Side
from exporter.diagnose.compare.statistics import Interval
from exporter.vocabulary.words import slow_at

EXIT_STATUS: Final = {IMPROVED: 0, NO_WORSE: 0, WORSE: 1, CANNOT_TELL: 2}
HEADINGS: Final = {
    IMPROVED: "improved",
    NO_WORSE: "no worse",
    WORSE: "worse",
    CANNOT_TELL: "cannot tell",
}
COLUMNS: Final = ("", "before", "after", "after / before (95 % interval)")
# Stages that take less of a step are not listed.
SMALLEST_STAGE: Final = 0.005

Row = tuple[str, str, str, str]


def as_text(found: Comparison) -> str:
    """Return a report for a terminal."""
    lines = [f"{_jobs(found)}: {HEADINGS[found.verdict]}", *_sentences(found)]
    if rows := list(_rows(found)):
        lines += ["", *_table(rows)]
    if late := list(_late(found)):
        lines += ["", *late]
    return "\n".join(lines)


def as_markdown(found: Comparison) -> str:
    """Return the same as Markdown."""
    lines = [f"## {_jobs(found)}: {HEADINGS[found.verdict]}", ""]
    lines += ["  \n".join(_sentences(found))]
    if rows := list(_rows(found)):
        table = [COLUMNS, ("---",) * len(COLUMNS), *rows]
        lines += ["", *(f"| {' | '.join(row)} |" for row in table)]
    if late := list(_late(found)):
        lines += ["", *(f"- {line}" for line in late)]
    return "\n".join(lines)


def as_json(found: Comparison) -> str:
    """Return it for scripts; docs/compare.md describes the fields."""
    return json.dumps(document(found), indent=2, allow_nan=False)


def document(found: Comparison) -> dict[str, object]:
    """Return the JSON document."""
    return {
        "verdict": found.verdict,
        "why": found.why,
        "notes": list(found.notes),
        "before": _side(found.before),
        "after": _side(found.after),
        "cost": _change(found.cost),
        "step": _change(found.step),
        "step_without_rare": _change(found.without_rare),
        "rates": [_change(one) for one in found.rates],
        "gpus_lost": [_change(one) for one in found.lost],
        "stages": [_change(one) for one in found.stages],
        "late": None
        if found.late is None
        else [
            {
                "rank": one.rank,
                "stage": one.stage,
                "before": asdict(one.before) if one.before else None,
                "after": asdict(one.after) if one.after else None,
            }
            for one in found.late
        ],
    }


def _side(side: Side) -> dict[str, object]:
    return {
        "job_id": side.job_id,
        "begin": round(side.begin, 3),
        "end": round(side.end, 3),
        "ranks": side.ranks,
        "steps": round(side.steps, 3),
        "blocks": len(side.blocks),
        "slowdown": side.slowdown,
    }


def _change(one: Change | None) -> dict[str, object] | None:
    return None if one is None else asdict(one)


# ---- Sentences ---------------------------------------------------------------------------------


def _jobs(found: Comparison) -> str:
    names = dict.fromkeys((found.before.job_id, found.after.job_id))
    return f"job{'s' * (len(names) > 1)} {' and '.join(names)}"


def _sentences(found: Comparison) -> Iterator[str]:
    cost = found.cost
    if cost is not None and cost.ratio is not None:
        if cost.name == "step":
            yield f"Steps take {_times(cost.ratio, 'as long')}{_so_what(found)}."
        else:
            gain = _times(cost.ratio.inverse, f"as many {cost.name} a second")
            yield f"A GPU trains {gain}{_so_what(found)}."
    if found.why is not None:
        yield found.why
    yield from found.notes


def _times(ratio: Interval, what: str) -> str:
    digits = _digits(ratio)
    return (
        f"{ratio.value:.{digits}f} times {what} as before (95 % interval {ratio.low:.{digits}f} to "
        f"{ratio.high:.{digits}f})"
    )


def _so_what(found: Comparison) -> str:
    if found.verdict != NO_WORSE:
        return ""
    return f": no change is certain, and a loss of {NO_WORSE_RATIO - 1:.0%} or more is ruled out"


def _late(found: Comparison) -> Iterator[str]:
    if found.cost is None:
        return
    if found.late is None:
        yield "Late ranks cannot be compared: nobody judged the job on both sides."
        return
    for one in found.late:
        yield f"Rank {one.rank}, slow {slow_at(one.stage)}: {_fate(one)}."
    if not found.late:
        yield "No rank was late on either side."


def _fate(one: LateChange) -> str:
    if one.before is None:
        return f"not late before, {_gpus(one.after)} after"
    if one.after is None:
        return f"{_gpus(one.before)} before, no longer late"
    return f"{_gpus(one.before)} before, {_gpus(one.after)} after"


def _gpus(late: LateRank | None) -> str:
    if late is None or late.gpus_lost is None:
        return "late at an unknown cost"
    return f"{late.gpus_lost:.2f} GPUs lost"


# ---- The table ---------------------------------------------------------------------------------


def _table(rows: Sequence[Row]) -> Iterator[str]:
    lines = [COLUMNS, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
    for name, *cells in lines:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        yield "  ".join([name.ljust(widths[0]), *aligned]).rstrip()


def _rows(found: Comparison) -> Iterator[Row]:
    if found.step is None:
        return
    yield "steps", f"{found.before.steps:,.0f}", f"{found.after.steps:,.0f}", ""
    yield _ratio_row("step", found.step, _seconds)
    if found.without_rare is not None:
        yield _ratio_row("without checkpoint, eval", found.without_rare, _seconds)
    for rate in found.rates:
        yield _ratio_row(f"{rate.name} a second", rate, _amount)
    for lost in found.lost:
        name = "GPUs lost" if lost.name == "total" else f"  {lost.name}"
        yield name, f"{lost.before:.2f}", f"{lost.after:.2f}", _plus(lost.difference)
    slowdowns = found.before.slowdown, found.after.slowdown
    if slowdowns[0] is not None and slowdowns[1] is not None:
        yield "slowdown by late ranks", f"{slowdowns[0]:.2f}x", f"{slowdowns[1]:.2f}x", ""
    for stage in found.stages:
        if max(stage.before, stage.after) > SMALLEST_STAGE * found.step.before:
            yield _ratio_row(f"{stage.name}, median rank", stage, _seconds)


def _ratio_row(name: str, one: Change, show: Callable[[float], str]) -> Row:
    return name, show(one.before), show(one.after), _interval(one.ratio) if one.ratio else ""


def _interval(ratio: Interval) -> str:
    digits = _digits(ratio)
    return f"{ratio.value:.{digits}f} ({ratio.low:.{digits}f} to {ratio.high:.{digits}f})"


def _digits(found: Interval) -> int:
    """Return how many decimals show the width of the interval."""
    return 2 if found.high - found.low >= 0.05 else 3


def _plus(found: Interval) -> str:
    return f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
