"""Times that people give and read, and periods of time in Unix seconds."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from exporter import durations
from exporter.errors import UsageError

HOUR_SECONDS: Final = 3_600.0
# Begin and end, the end excluded; lists of spans are sorted and do not overlap.
Span = tuple[float, float]
# Spans that are this close are merged: times are sums of steps, which round.
TOUCHING_SECONDS: Final = 0.001
# A clock time that is further ahead of now than this was yesterday's.
CLOCK_ERROR_SECONDS: Final = 60.0

UNIX: Final = re.compile(r"\d+(\.\d+)?", re.ASCII)
CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def merged(spans: Iterable[Span], gap_seconds: float = 0.0) -> list[Span]:
    """Return *spans* in order; those that overlap, or are at most *gap_seconds* apart, are one."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] <= gap_seconds + TOUCHING_SECONDS:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def seconds(spans: Iterable[Span]) -> float:
    """Return how long *spans* are together."""
    return sum(end - begin for begin, end in spans)


# ---- What people give and read -------------------------------------------------------------------


def moment(text: str, now: float) -> float:
    """Return the Unix time that *text* means at *now*, in UTC if it has no offset.

    Raises UsageError.
    """
    try:
        if text == "now":
            return now
        if text.startswith("-"):
            return datetime.fromtimestamp(now - durations.parse(text[1:]), UTC).timestamp()
        if UNIX.fullmatch(text):
            return datetime.fromtimestamp(float(text), UTC).timestamp()
        if clock := CLOCK.fullmatch(text):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            today = datetime.fromtimestamp(now, UTC)
            today = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
            is_to_come = today.timestamp() > now + CLOCK_ERROR_SECONDS
            return (today - timedelta(days=is_to_come)).timestamp()
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{text!r} is not a time; give 14:05, 2026-01-31T14:05, -30m or seconds since 1970"
        ) from error


def iso(seconds: float) -> str:
    """Return the Unix time *seconds* for programs, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def to_minute(at: str) -> str:
    """Return a time from iso() for people."""
    return at[:16].replace("T", " ")


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
