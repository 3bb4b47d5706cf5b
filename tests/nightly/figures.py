"""How long the nightly tests are, and the figures that they must keep."""

import os
from collections.abc import Sequence
from typing import Final

from benchmarks.report import Row, merged, number, show, write
from generators.markdown import table

# Set by `make test-nightly`; otherwise each takes about a minute, to see that it works.
FULL: Final = os.environ.get("RANKSKEW_NIGHTLY") == "full"


def full_or_short(full: float, short: float) -> float:
    """Return what this run asks for."""
    return full if FULL else short


def row(what: str, measured: float, most: float | None = None) -> Row:
    """Return a figure and the most that is allowed; *most* None: nothing is promised."""
    return {"what": what, "measured": measured, "most allowed": most}


def hold(name: str, rows: Sequence[Row]) -> None:
    """Fail if one of *rows* is above what is allowed.

    In full length they take their places in results/*name*.json, for the pages.
    """
    if FULL:
        write(name, merged(name, rows, ("what",)), tables={name: beside_limits})
    else:
        show(rows)
    limits = [(each, each["most allowed"]) for each in rows]
    assert [each for each, most in limits if most is not None and each["measured"] > most] == []


def beside_limits(result: Row) -> str:
    """Return the figures of *result*, each beside the most that is allowed."""
    cells = [tuple(map(number, each.values())) for each in result["rows"]]
    header = ("what", "measured", "most allowed")
    return f"On {result['machine']['cpus']} CPUs.\n\n{table(header, cells)}"
