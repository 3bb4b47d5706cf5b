"""The tables of docs/accuracy.md: verdicts on planted faults, and many ranks at once."""

from collections.abc import Sequence
from typing import Any

from benchmarks.accuracy.plan import FAINT, HEALTHY, JOIN, SINGLE
from benchmarks.accuracy.score import NAMED, is_miss, summary
from benchmarks.report import Row, written
from generators.markdown import table

SHOWN = (
    *("cells", "to find", "found", "rank", "stage", "kind"),
    *("false alarms", "onset s", "slowdown error", "loss error"),
)
SHOWN_TOGETHER = ("cells", "to find", *NAMED, "false alarms", "onset s")
FORMATS = {"onset s": ".0f", "slowdown error": ".1%", "loss error": ".1%"}


def faults(result: Row) -> str:
    """Return the judge's results on planted faults, by size and by fault, and every miss."""
    runs = [row for row in result["rows"] if _is_single(row)]
    healthy = [row for row in runs if row["fault"] in HEALTHY]
    planted = [row for row in runs if row not in healthy]
    parts = [
        _headline(result["machine"], runs),
        _table(planted, ("size",), SHOWN),
        _table(planted, ("fault", "way"), SHOWN),
        _table(healthy, ("fault", "way", "ranks"), ("cells", "false alarms")),
        _misses([row for row in runs if is_miss(row)]),
    ]
    return "\n\n".join(part for part in parts if part)


def together(result: Row) -> str:
    """Return the same of faint faults, of many ranks at once, duties, and of simulated ranks."""
    runs = [row for row in result["rows"] if not _is_single(row)]
    simulated = [row for row in runs if row["way"] == JOIN]
    real = [row for row in runs if row["way"] != JOIN]
    by = ("fault", "size", "way", "ranks")
    parts = [
        _headline(result["machine"], runs),
        _table([row for row in real if row["size"] == FAINT], by, SHOWN_TOGETHER),
        _table([row for row in real if row["size"] != FAINT], by, SHOWN_TOGETHER),
        _table(simulated, by, SHOWN_TOGETHER),
        _misses([row for row in runs if is_miss(row)]),
    ]
    return "\n\n".join(part for part in parts if part)


def _is_single(row: Row) -> bool:
    """Whether it is one of the faults of single ranks, or of the healthy runs beside them."""
    return row["fault"] in SINGLE and row["size"] != FAINT and row["way"] != JOIN


def _headline(machine: Row, runs: Sequence[Row]) -> str:
    right = sum(not is_miss(row) for row in runs)
    commits = ", ".join(f"`{name}`" for name in sorted({row["judged"] for row in runs}))
    return (
        f"{right} of {len(runs)} runs were judged correctly on {machine['cpus']} CPUs with torch "
        f"{machine['torch']}, judged by commit {commits}."
    )


def _table(found: Sequence[Row], by: tuple[str, ...], shown: tuple[str, ...]) -> str:
    if not found:
        return ""
    ordered = sorted(found, key=lambda row: tuple(row[name] for name in by))
    cells = [
        (
            *(_named(name, row[name]) for name in by),
            *(_said(name, row[name], row["to find"]) for name in shown),
        )
        for row in summary(ordered, by)
    ]
    return table((*by, *("runs" if name == "cells" else name for name in shown)), cells)


def _named(name: str, value: Any) -> str:
    return f"{value * 100:g} %" if name == "size" else str(value)


def _said(name: str, value: Any, to_find: int) -> str:
    """Return the figure *name*; what was missed is in bold."""
    bad = value if name == "false alarms" else name in NAMED and value not in (None, to_find)
    return f"**{value}**" if bad else written(value, FORMATS.get(name, "d"))


def _misses(found: Sequence[Row]) -> str:
    if not found:
        return "Nothing was missed."
    cells = [
        (
            f"{row['way']}, {row['ranks']} ranks, seed {row['seed']}",
            row["fault"],
            f"{row['truth']['size']:.1%}",
            "; ".join(row["said"]) or ("" if row["found"] is None else "nobody"),
            "; ".join(row["false"]),
        )
        for row in found
    ]
    header = ("run", "fault", "measured size", "right findings", "wrong findings")
    return f"Misses:\n\n{table(header, cells)}"
