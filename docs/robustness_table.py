"""What was tried on a running exporter: hostile input, slow clients and kills."""

from docs.figures import result, rows
from docs.markdown import table


def measured(name: str) -> str:
    """Return the figures of the benchmark *name*, each beside the most that is allowed."""
    cells = [
        (row["what"], _number(row["measured"]), _number(row["most allowed"])) for row in rows(name)
    ]
    header = ("what", "measured", "most allowed")
    return f"On {result(name)['machine']['cpus']} CPUs.\n\n{table(header, cells)}"


def slow_clients() -> str:
    """Return how scrapes went undisturbed, beside slow clients, and as one of them."""
    cells = [
        (
            row["what"],
            f"{row['failed']} of {row['scrapes']}",
            f"{_ms(row['p50 ms'])} (p99 {_ms(row['p99 ms'])}, longest {_ms(row['longest ms'])}) ms",
            str(row["ranks unheard"]),
            f"{row['new ranks refused']} of {row['scrapes']}",
            str(row["most open files"]),
        )
        for row in rows("slow_clients")
    ]
    header = (
        "",
        "scrapes failed",
        "median time of a scrape",
        "ranks unheard",
        "new ranks refused",
        "files of the exporter",
    )
    return f"On {result('slow_clients')['machine']['cpus']} CPUs.\n\n{table(header, cells)}"


def _ms(milliseconds: float | None) -> str:
    return "none" if milliseconds is None else f"{milliseconds:.1f}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
