"""The table of docs/nodes.md: lemons that were found, and healthy nodes that were accused."""

from generators.markdown import table
from generators.measured.results import number, rows


def lemons() -> str:
    """Return a row for each simulated month."""
    made = rows("nodes")
    header = tuple(name for name in made[0] if name != "seconds")
    table_ = table(header, [tuple(str(row[name]) for name in header) for row in made])
    (seconds,) = (row["seconds"] for row in made if row["seconds"] is not None)
    return f"{table_}\n\nThe five queries of 30 days took Prometheus {number(seconds)} s."
