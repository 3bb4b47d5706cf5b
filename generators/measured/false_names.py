"""Tables of simulated jobs and nodes: how often the healthy are accused, and others found."""

from generators.markdown import table
from generators.measured.results import number, rows


def false_names() -> str:
    """Return a row for each kind of noise and length of a step."""
    return _simulated("false_names")


def changes() -> str:
    """Return a row for each kind of job that becomes slower."""
    return _simulated("changes")


def no_changes() -> str:
    """Return a row for each kind of noise of healthy jobs."""
    return _simulated("no_changes")


def _simulated(name: str) -> str:
    made = rows(name)
    cells = [(next(iter(row.values())), *map(number, list(row.values())[1:])) for row in made]
    return table(tuple(made[0]), cells)


def lemons() -> str:
    """Return a row for each simulated month."""
    made = rows("nodes")
    header = tuple(name for name in made[0] if name != "seconds")
    table_ = table(header, [tuple(str(row[name]) for name in header) for row in made])
    (seconds,) = (row["seconds"] for row in made if row["seconds"] is not None)
    return f"{table_}\n\nAll queries of 30 days together took {number(seconds)} s."
