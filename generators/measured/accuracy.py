"""The tables of docs/accuracy.md: verdicts on planted faults, and ways to train."""

from collections.abc import Sequence
from typing import Any

from benchmarks.accuracy.plan import FAINT, HEALTHY, JOIN, SINGLE
from benchmarks.accuracy.score import NAMED, is_miss, summary
from generators.markdown import table
from generators.measured.results import Row, result, rows, written

SHOWN = (
    *("cells", "to find", "found", "rank", "stage", "kind"),
    *("false alarms", "onset s", "slowdown error", "loss error"),
)
SHOWN_TOGETHER = ("cells", "to find", *NAMED, "false alarms", "onset s")
FORMATS = {"onset s": ".0f", "slowdown error": ".1%", "loss error": ".1%"}


def faults() -> str:
    """Return the judge's results on planted faults, by size and by fault, and every miss."""
    runs = [row for row in rows("accuracy") if _is_single(row)]
    healthy = [row for row in runs if row["fault"] in HEALTHY]
    planted = [row for row in runs if row not in healthy]
    parts = [
        _headline(runs),
        _table(planted, ("size",), SHOWN),
        _table(planted, ("fault", "way"), SHOWN),
        _table(healthy, ("fault", "way", "ranks"), ("cells", "false alarms")),
        _misses([row for row in runs if is_miss(row)]),
    ]
    return "\n\n".join(part for part in parts if part)


def together() -> str:
    """Return the same of faint faults, of many ranks at once, duties, and of simulated ranks."""
    runs = [row for row in rows("accuracy") if not _is_single(row)]
    simulated = [row for row in runs if row["way"] == JOIN]
    real = [row for row in runs if row["way"] != JOIN]
    by = ("fault", "size", "way", "ranks")
    parts = [
        _headline(runs),
        _table([row for row in real if row["size"] == FAINT], by, SHOWN_TOGETHER),
        _table([row for row in real if row["size"] != FAINT], by, SHOWN_TOGETHER),
        _table(simulated, by, SHOWN_TOGETHER),
        _misses([row for row in runs if is_miss(row)]),
    ]
    return "\n\n".join(part for part in parts if part)


def _is_single(row: Row) -> bool:
    """Whether it is one of the faults of single ranks, or of the healthy runs beside them."""
    return row["fault"] in SINGLE and row["size"] != FAINT and row["way"] != JOIN


def _headline(runs: Sequence[Row]) -> str:
    machine = result("accuracy")["machine"]
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


def latency() -> str:
    """Return how long after the onset the alert fired."""
    found = rows("latency")
    if all(row["runs"] == 1 for row in found):
        for row in found:
            row["s"] = row.pop("median, s")
            del row["max, s"]
    cells = [tuple(written(value, ".3g") for value in row.values()) for row in found]
    return table(tuple(found[0]), cells)


def ways() -> str:
    """Return which delays were named, with the measured excess as a share of the planted one."""
    found, machine = rows("ways"), result("ways")["machine"]
    places = list(dict.fromkeys(row["in"] for row in found))
    cells = [
        (arm, *(_cell(found, arm, place) for place in places), _waits(found, arm))
        for arm in dict.fromkeys(row["arm"] for row in found)
    ]
    named = sum(row["named"] for row in found)
    sentence = (
        f"For {named} of {len(found)} delays the right rank and stage were named, "
        f"on {machine['cpus']} CPUs with torch {machine['torch']}."
    )
    return f"{sentence}\n\n{table(('training', *places, 'sync: late rank, its peers'), cells)}"


def _cell(found: Sequence[Row], arm: str, place: str) -> str:
    """Return what was measured; nothing if *arm* has no such stage."""
    row = next((row for row in found if (row["arm"], row["in"]) == (arm, place)), None)
    if row is None:
        return ""
    excess = f"{row['by, ms']:.0f} of {row['planted, ms']:.0f} ms"
    if row["named"]:
        return excess
    return f"**rank {row['waits least']}, {row['furthest ahead in']}**: {excess}"


def _waits(found: Sequence[Row], arm: str) -> str:
    """Return the range over the places."""
    mine = [row for row in found if row["arm"] == arm]
    ranges = []
    for key in ("its wait, ms", "wait of its peers, ms"):
        values = [row[key] for row in mine]
        ranges.append(f"{min(values):.0f} to {max(values):.0f} ms")
    return ", ".join(ranges)
