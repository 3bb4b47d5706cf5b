"""The tables on lines of code: whether the slow one is named, and what naming it costs."""

from docs.figures import result, rows
from docs.markdown import table


def lines() -> str:
    """Return which line was named for each that was planted, and that a healthy rank has none."""
    cells = [
        (
            row["slow line"],
            row["planted at"] or "",
            row["stage"] or "",
            row["first line"] or "none",
            "" if row["share"] is None else f"{row['share']:.0%}",
            _seconds(row["line shown after, s"]),
            str(row["samples on it"]),
            str(row["on the others"]),
        )
        for row in rows("late_lines")
    ]
    header = (
        "slow line",
        "planted at",
        "judged stage",
        "named line",
        "share",
        "named after, s",
        "samples",
        "samples of the other ranks",
    )
    return f"On {result('late_lines')['machine']['cpus']} CPUs.\n\n{table(header, cells)}"


def cost() -> str:
    """Return what a rank that is sampled takes longer than one that is not."""
    cells = [
        (
            row["what"],
            _number(row["measured"]),
            "" if row["standard error"] is None else f"{row['standard error']:.2g}",
            "" if row["most allowed"] is None else f"{row['most allowed']:g}",
        )
        for row in rows("late_lines_cost")
    ]
    header = ("what", "measured", "standard error", "most allowed")
    return f"On {result('late_lines_cost')['machine']['cpus']} CPUs.\n\n{table(header, cells)}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
