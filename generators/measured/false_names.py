"""Tables of simulated jobs and nodes: how often healthy ones are accused, and lemons found."""

from generators.markdown import table
from generators.measured.results import number, rows


def false_names() -> str:
    """Return a row for each kind of noise and length of a step."""
    header = ("noise", "step, s", "rank-hours", "incidents", "named", "mild")
    cells = [
        (row["noise"], *(number(row[name]) for name in header[1:])) for row in rows("false_names")
    ]
    return table(header, cells)


def lemons() -> str:
    """Return a row for each simulated month."""
    made = rows("nodes")
    header = tuple(name for name in made[0] if name != "seconds")
    table_ = table(header, [tuple(str(row[name]) for name in header) for row in made])
    (seconds,) = (row["seconds"] for row in made if row["seconds"] is not None)
    return f"{table_}\n\nAll queries of 30 days together took {number(seconds)} s."
