"""Tables of simulated jobs: how often the healthy are accused, and others found."""

from generators.markdown import table
from generators.measured.results import number, rows


def false_names() -> str:
    """Return a row for each kind of noise and length of a step."""
    return _simulated("false_names")


def _simulated(name: str) -> str:
    made = rows(name)
    cells = [(next(iter(row.values())), *map(number, list(row.values())[1:])) for row in made]
    return table(tuple(made[0]), cells)
