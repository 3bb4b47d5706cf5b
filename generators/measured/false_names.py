"""The table of docs/accuracy.md on healthy jobs: how often a rank is named."""

from generators.markdown import table
from generators.measured.results import number, rows


def false_names() -> str:
    """Return a row for each kind of noise and length of a step."""
    header = ("noise", "step, s", "rank-hours", "named", "mild")
    cells = [
        (row["noise"], *(number(row[name]) for name in ("step, s", "rank-hours", "named", "mild")))
        for row in rows("false_names")
    ]
    return table(header, cells)
