"""What was tried on a running exporter: hostile input, slow clients and kills."""

from generators.measured.results import Row, measured_table, number, rows


def measured(name: str) -> str:
    """Return the figures of the benchmark *name*, each beside the most that is allowed."""
    cells = [
        (row["what"], number(row["measured"]), number(row["most allowed"])) for row in rows(name)
    ]
    return measured_table(name, ("what", "measured", "most allowed"), cells)


def slow_clients() -> str:
    """Return how scrapes went undisturbed, beside slow clients, and as one of them."""
    cells = [
        (
            row["what"],
            f"{row['failed']} of {row['scrapes']}",
            _times(row),
            str(row["ranks unheard"]),
            f"{row['new ranks refused']} of {row['scrapes']}",
            str(row["most open files"]),
        )
        for row in rows("slow_clients")
    ]
    header = (
        *("", "scrapes failed", "median time of a scrape", "ranks unheard", "new ranks refused"),
        "files of the exporter",
    )
    return measured_table("slow_clients", header, cells)


def _times(row: Row) -> str:
    median, p99, longest = (
        "none" if row[name] is None else f"{row[name]:.1f}"
        for name in ("p50 ms", "p99 ms", "longest ms")
    )
    return f"{median} (p99 {p99}, longest {longest}) ms"
