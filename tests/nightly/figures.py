"""The length of the nightly tests, and the limits on their figures."""

import os
from collections.abc import Sequence
from typing import Final

from benchmarks.report import Row, merged, number, show, write
from generators.markdown import table

# Set by `make test-nightly`; otherwise each test takes about a minute, to show that it works.
FULL: Final = os.environ.get("RANKSKEW_NIGHTLY") == "full"


def full_or_short(full: float, short: float) -> float:
    """Return *full* in a run of full length, else *short*."""
    return full if FULL else short


def row(what: str, measured: float, most: float | None = None) -> Row:
    """Return a figure and the most that is allowed; *most* None: nothing is promised."""
    return {"what": what, "measured": measured, "most allowed": most}


def hold(name: str, rows: Sequence[Row]) -> None:
    """Fail if one of *rows* is above what is allowed.

    In a run of full length they are merged into results/*name*.json, for the pages.
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
