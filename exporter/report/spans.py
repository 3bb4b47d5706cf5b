"""Periods of time as sorted lists of spans that do not overlap; a span ends before its end."""

from collections.abc import Iterable, Sequence

# Unix seconds: begins at the first, ends before the second.
Span = tuple[float, float]
# Spans that meet within this are one: times are sums of steps.
TOUCHING_SECONDS = 0.001


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
