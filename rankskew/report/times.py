"""Periods of time in Unix seconds, and how people read times and amounts."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from exporter import durations

DAY_SECONDS: Final = 86_400.0
HOUR_SECONDS: Final = 3_600.0
NOT_KNOWN: Final = "–"
# Begins at the first, ends before the second; lists of spans are sorted and do not overlap.
Span = tuple[float, float]
# Spans that meet within this are one: times are sums of steps.
TOUCHING_SECONDS: Final = 0.001


def merged(spans: Iterable[Span], gap_seconds: float = 0.0) -> list[Span]:
    """Return *spans* in order; those that overlap, or are at most *gap_seconds* apart, are one."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] <= gap_seconds + TOUCHING_SECONDS:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return what remains of *spans* where none of *others* is; both in order."""
    found: list[Span] = []
    for begin, end in spans:
        for other_begin, other_end in others:
            if other_end <= begin or other_begin >= end:
                continue
            if other_begin > begin:
                found.append((begin, other_begin))
            begin = max(begin, other_end)
        if begin < end:
            found.append((begin, end))
    return found


def within(spans: Sequence[Span], begin: float, end: float) -> list[Span]:
    """Return the parts of *spans* between *begin* and *end*."""
    cut = [(max(begin, a), min(end, b)) for a, b in spans]
    return [(a, b) for a, b in cut if a < b]


def seconds(spans: Iterable[Span]) -> float:
    """Return how long *spans* are together."""
    return sum(end - begin for begin, end in spans)


def of_points(times: Iterable[float], step_seconds: float) -> list[Span]:
    """Return the spans that *times* stand for, each for the step that begins there."""
    return merged((time, time + step_seconds) for time in times)


# ---- For people ------------------------------------------------------------------------------


def show(seconds: float) -> str:
    """Return the Unix time *seconds* to the minute, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def iso(seconds: float) -> str:
    """Return the Unix time *seconds* for programs."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def length(seconds: float) -> str:
    """Return *seconds* in the two largest units: 3d 4h, 5h 12m, 7m 30s, 12s."""
    if seconds < 1:
        return f"{seconds:.1f}s"
    left, parts = round(seconds), []
    for unit in ("d", "h", "m", "s"):
        size = round(durations.UNIT_SECONDS[unit])
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
        elif parts:
            break
    return " ".join(parts[:2])


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
