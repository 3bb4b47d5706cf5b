"""Counts, amounts, and lists that may be long, in words."""

from collections.abc import Collection, Sequence
from typing import Final

from exporter.live.wording import listed

# The most names in a sentence, and the most ranks that are listed by number.
MOST_NAMES: Final = 20
MOST_RANKS: Final = 8
NOT_KNOWN: Final = "–"


def counted(number: int, what: str) -> str:
    """Return *number* with the thing that is counted: 1 rank, 2 ranks."""
    return f"{number} {what}{'s' * (number != 1)}"


def clock(seconds: float) -> str:
    """Return a time since the beginning of a trace: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def few(names: Sequence[str]) -> str:
    """Return the first of *names*, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"


def named_ranks(ranks: Collection[int]) -> str:
    """Return *ranks* by their numbers, and how many more there are: ranks 0, 1 and 3."""
    names = [str(rank) for rank in sorted(ranks)]
    if len(names) > MOST_RANKS:
        names = [*names[:MOST_RANKS], f"{len(names) - MOST_RANKS} more"]
    return f"rank{'s' * (len(ranks) != 1)} {listed(names)}"


def gpu_hours(hours: float | None) -> str:
    """Return GPU-hours with three digits; NOT_KNOWN for None."""
    if hours is None:
        return NOT_KNOWN
    if 0 < hours < 0.005:
        return "<0.01"
    return f"{hours:.2f}" if hours < 100 else f"{hours:,.0f}"


def money(dollars: float | None) -> str:
    """Return US$; NOT_KNOWN for None."""
    if dollars is None:
        return NOT_KNOWN
    if 0 < dollars < 0.005:
        return "<$0.01"
    return f"${dollars:.2f}" if dollars < 1000 else f"${dollars:,.0f}"
