"""What docs/collectives.md shows: a measurement, which links were named, and a plain loop."""

from generators.markdown import table
from generators.measured import results
from generators.measured.results import measured_table, rows


def sample() -> str:
    """Return what a measurement with a slow link printed."""
    text = (results.RESULTS / "collectives.txt").read_text()
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def links() -> str:
    """Return how often the link or rank that was slowed down was named, and nothing else."""
    cells = [
        (row["case"], f"{row['right']} of {row['runs']}", row["named"])
        for row in rows("collectives")
        if row["part"] == "links"
    ]
    return table(("slowed down", "right", "named"), cells)


def loop() -> str:
    """Return our time over that of a plain loop, for each collective and size."""
    cells = [
        (
            row["collective"],
            row["size"],
            f"{row['ours ms']:.3g}",
            f"{row['plain ms']:.3g}",
            f"{row['ratio']:.3f}",
            f"{row['from']:.3f} to {row['to']:.3f}",
        )
        for row in rows("collectives")
        if row["part"] == "loop"
    ]
    header = ("collective", "size", "ours, ms", "plain loop, ms", "ratio", "95 % interval")
    return measured_table("collectives", header, cells)
