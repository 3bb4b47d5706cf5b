"""The results of the benchmarks, and what all tables of them have in common."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from generators.markdown import table

RESULTS: Final = Path(__file__).parents[2] / "benchmarks" / "results"

Row = dict[str, Any]


def result(name: str) -> Row:
    """Return one benchmark's result: its rows and the machine they were measured on."""
    found: Row = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def rows(name: str) -> list[Row]:
    """Return the rows of one benchmark's result."""
    found: list[Row] = result(name)["rows"]
    return found


def sample(name: str) -> str:
    """Return, as a block of a page, what a command has printed."""
    return f"```\n{(RESULTS / f'{name}.txt').read_text().strip()}\n```"


def measured_table(name: str, header: tuple[str, ...], cells: Iterable[tuple[str, ...]]) -> str:
    """Return a table of the result *name* below the number of CPUs it was measured on."""
    return f"On {result(name)['machine']['cpus']} CPUs.\n\n{table(header, cells)}"


def written(value: float | None, how: str) -> str:
    """Return *value* in the format *how*; what was not measured is left empty."""
    return "" if value is None else format(value, how)


def number(value: float | None) -> str:
    """Return whole numbers exactly, others in three digits."""
    return written(value, "," if isinstance(value, int) else ".3g")
