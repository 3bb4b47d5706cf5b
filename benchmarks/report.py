"""How benchmarks report: a table on the terminal, the same rows as JSON."""

import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]
# By name, functions that make the Markdown of a result, which has a "machine" and "rows".
Tables = Mapping[str, Callable[[Row], str]]


def last(name: str) -> list[Row]:
    """Return the rows of the last result called *name*."""
    path = RESULTS / f"{name}.json"
    found: list[Row] = json.loads(path.read_text())["rows"] if path.exists() else []
    return found


def merged(name: str, rows: Sequence[Row], key: Sequence[str]) -> list[Row]:
    """Return *rows*, and those of the last result *name* that differ in a column of *key*."""
    measured = [[row[column] for column in key] for row in rows]
    return [
        *(row for row in last(name) if [row.get(column) for column in key] not in measured),
        *rows,
    ]


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles of *values*, in their unit."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"q1": low, "median": median, "q3": high}


def median_interval(values: Sequence[float]) -> dict[str, float | None]:
    """Return the median of *values* and its 95 % confidence interval, in their unit.

    The interval lies between two of the sorted values, the k-th from either end. It misses the true
    median only if fewer than k independent values fall on one side of it, which is as likely as
    fewer than k heads in as many tosses of a coin; k is the largest for which both ends together
    stay below 5 %. (H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition, 2003, section
    7.1.) It assumes nothing about the distribution. None for both ends of fewer than six values.
    """
    count, ordered = len(values), sorted(values)
    k, missed = 0, 1
    while 40 * missed <= 2**count:  # 2 * missed / 2**count <= 5 %, in integers of any size
        k += 1
        missed += math.comb(count, k)
    low, high = (ordered[k - 1], ordered[-k]) if k else (None, None)
    return {"median": statistics.median(ordered), "95 % from": low, "95 % to": high}


def show(rows: Sequence[Row]) -> None:
    """Print *rows*, which have the same keys, as a table; None is an empty cell."""
    columns = list(rows[0])
    cells = [columns, *([number(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def write(
    name: str,
    rows: Sequence[Row],
    packages: Sequence[str] = (),
    gpu: str = "",
    tables: Tables | None = None,
) -> None:
    """Show *rows* and write them to results/*name*.json, with the versions of *packages*.

    *gpu* is the name of the GPU, if one was measured. Each of *tables* goes to a Markdown file
    beside it, named after its key; `make docs` copies it into the pages.
    """
    show(rows)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    machine |= {"GPU": gpu} if gpu else {}
    machine |= {package: metadata.version(package) for package in packages}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    result = {"machine": machine, "rows": list(rows)}
    path.write_text(json.dumps(result, indent=2) + "\n")
    write_tables(result, tables or {})
    print(f"written: {path.name} in {path.parent}")


def write_tables(result: Row, tables: Tables) -> None:
    """Write each of *tables* of *result* to results/NAME.md."""
    for name, make in tables.items():
        (RESULTS / f"{name}.md").write_text(make(result) + "\n")


def measured_with(result: Row) -> str:
    """Return the CPUs and versions that *result* was measured with, as a sentence."""
    machine = result["machine"]
    versions = [f"{package} {machine[package]}" for package in machine if package != "cpus"]
    return f"Measured on {machine['cpus']} CPUs with {', '.join(versions)}."


def written(value: float | None, how: str) -> str:
    """Return *value* in the format *how*; what was not measured is left empty."""
    return "" if value is None else format(value, how)


def digits(value: float) -> str:
    """Return *value* to three digits, or as a whole number from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """Return *share*, in percent, to two digits; empty if it is None."""
    return "" if share is None else f"{share:.2g} %"


def number(value: object) -> str:
    """Return whole numbers exactly, others in three digits, else text; None is empty."""
    if value is None:
        return ""
    how = ".3g" if isinstance(value, float) else "," if type(value) is int else ""
    return format(value, how)
