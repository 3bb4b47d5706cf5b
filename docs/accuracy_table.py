"""The tables of docs/accuracy.md: verdicts on planted faults, and ways to train."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.accuracy.plan import HEALTHY
from benchmarks.accuracy.score import is_miss, summary
from benchmarks.crosscheck.compare import KINDS
from docs.figures import RESULTS, result
from docs.markdown import table

Row = dict[str, Any]

SHOWN = (
    *("cells", "to find", "found", "rank", "stage", "kind"),
    *("false alarms", "onset s", "slowdown error", "loss error"),
)


def faults() -> str:
    """Return the judge's results on planted faults, by size and by fault, and every miss."""
    if not (RESULTS / "accuracy.json").exists():
        return "Not measured yet."
    found = result("accuracy")
    rows: list[Row] = found["rows"]
    machine = found["machine"]
    healthy = [row for row in rows if row["fault"] in HEALTHY]
    planted = [row for row in rows if row not in healthy]
    parts = [
        f"{_all(rows)} on {machine['cpus']} CPUs with torch {machine['torch']}, "
        f"judged by commit {_commits(rows)}.",
        _table(planted, ("size",), SHOWN),
        _table(planted, ("fault", "way"), SHOWN),
        _table(healthy, ("fault", "way", "ranks"), ("cells", "false alarms")),
        _misses([row for row in rows if is_miss(row)]),
    ]
    return "\n\n".join(part for part in parts if part)


def _all(rows: Sequence[Row]) -> str:
    right = sum(not is_miss(row) for row in rows)
    return f"{right} of {len(rows)} runs were judged correctly"


def _commits(rows: Sequence[Row]) -> str:
    return ", ".join(f"`{name}`" for name in sorted({row["judged"] for row in rows}))


def _table(rows: Sequence[Row], by: tuple[str, ...], shown: tuple[str, ...]) -> str:
    if not rows:
        return ""
    ordered = sorted(rows, key=lambda row: tuple(row[name] for name in by))
    cells = [
        (
            *(_named(name, row[name]) for name in by),
            *(_WRITTEN.get(name, _count)(row[name], row["to find"]) for name in shown),
        )
        for row in summary(ordered, by)
    ]
    return table((*by, *("runs" if name == "cells" else name for name in shown)), cells)


def _named(name: str, value: Any) -> str:
    return f"{value * 100:g} %" if name == "size" else str(value)


def _count(value: int | None, _cells: int) -> str:
    return "" if value is None else str(value)


def _share(value: int | None, cells: int) -> str:
    return _count(value, cells) if value in (None, cells) else f"**{value}**"


def _alarms(value: int, _cells: int) -> str:
    return f"**{value}**" if value else "0"


def _seconds(value: float | None, _cells: int) -> str:
    return "" if value is None else f"{value:.0f}"


def _percent(value: float | None, _cells: int) -> str:
    return "" if value is None else f"{value:.1%}"


_WRITTEN: dict[str, Callable[[Any, int], str]] = {
    "found": _share,
    "rank": _share,
    "stage": _share,
    "kind": _share,
    "false alarms": _alarms,
    "onset s": _seconds,
    "slowdown error": _percent,
    "loss error": _percent,
}


def _misses(rows: Sequence[Row]) -> str:
    if not rows:
        return "Nothing was missed."
    cells = [
        (
            f"{row['way']}, {row['ranks']} ranks, seed {row['seed']}",
            row["fault"],
            f"{row['truth']['size']:.1%}",
            "; ".join(row["said"]) or ("" if row["found"] is None else "nobody"),
            "; ".join(row["false"]),
        )
        for row in rows
    ]
    header = ("run", "fault", "measured size", "right findings", "wrong findings")
    return f"Misses:\n\n{table(header, cells)}"


def crosscheck() -> str:
    """Return by how much, at most, the rules on a real Prometheus differ from the reference."""
    rows: list[Row] = result("crosscheck")["rows"]
    cells = []
    for fault, source in dict.fromkeys((row["fault"], row["source"]) for row in rows):
        mine = [row for row in rows if (row["fault"], row["source"]) == (fault, source)]
        sizes = [row["ranks"] for row in mine]
        cells.append(
            (
                *(fault, source, f"{min(sizes)} to {max(sizes)}"),
                f"{sum(row['right'] for row in mine)} of {len(mine)}",
                *(_percent(max(row[kind] for row in mine), 0) for kind in KINDS),
            )
        )
    return table(("jobs", "source", "ranks", "named correctly", *KINDS), cells)


def latency() -> str:
    """Return how long after the onset the alert fired."""
    if not (RESULTS / "latency.json").exists():
        return "Not measured yet."
    found = [dict(row) for row in result("latency")["rows"]]
    if all(row["runs"] == 1 for row in found):
        for row in found:
            row["s"] = row.pop("median, s")
            del row["max, s"]
    cells = [
        tuple("" if value is None else f"{value:.3g}" for value in row.values()) for row in found
    ]
    return table(tuple(found[0]), cells)


def ways() -> str:
    """Return which delays were named, with the measured excess as a share of the planted one."""
    found = result("ways")
    rows: Sequence[Row] = found["rows"]
    places = list(dict.fromkeys(row["in"] for row in rows))
    cells = [
        (arm, *(_cell(row) for row in rows if row["arm"] == arm), _waits(rows, arm))
        for arm in dict.fromkeys(row["arm"] for row in rows)
    ]
    named = sum(row["named"] for row in rows)
    machine = found["machine"]
    sentence = (
        f"For {named} of {len(rows)} delays the right rank and stage were named, "
        f"on {machine['cpus']} CPUs with torch {machine['torch']}."
    )
    return f"{sentence}\n\n{table(('training', *places, 'sync: late rank, its peers'), cells)}"


def _cell(row: Row) -> str:
    excess = f"{row['by, ms']:.0f} of {row['planted, ms']:.0f} ms"
    if row["named"]:
        return excess
    return f"**rank {row['waits least']}, {row['furthest ahead in']}**: {excess}"


def _waits(rows: Sequence[Row], arm: str) -> str:
    """Return the range over the places."""
    mine = [row for row in rows if row["arm"] == arm]
    ranges = []
    for key in ("its wait, ms", "wait of its peers, ms"):
        values = [row[key] for row in mine]
        ranges.append(f"{min(values):.0f} to {max(values):.0f} ms")
    return ", ".join(ranges)
