"""The tables on lines of code: whether the slow one is named, and what naming it costs."""

from generators.measured.results import measured_table, number, rows, written


def lines() -> str:
    """Return which line was named for each that was planted, and that a healthy rank has none."""
    cells = [
        (
            row["slow line"],
            row["planted at"] or "",
            row["stage"] or "",
            row["first line"] or "none",
            written(row["share"], ".0%"),
            written(row["line shown after, s"], ".1f"),
            str(row["samples on it"]),
            str(row["on the others"]),
        )
        for row in rows("late_lines")
    ]
    header = (
        *("slow line", "planted at", "judged stage", "named line", "share", "named after, s"),
        *("samples", "samples of the other ranks"),
    )
    return measured_table("late_lines", header, cells)


def cost() -> str:
    """Return what a rank that is sampled takes longer than one that is not."""
    cells = [
        (
            row["what"],
            number(row["measured"]),
            written(row["standard error"], ".2g"),
            written(row["most allowed"], "g"),
        )
        for row in rows("late_lines_cost")
    ]
    header = ("what", "measured", "standard error", "most allowed")
    return measured_table("late_lines_cost", header, cells)
