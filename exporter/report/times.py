"""Times as people write and read them, in UTC, and amounts."""

from datetime import UTC, datetime

from exporter import durations

DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3_600.0


def parse(text: str) -> float:
    """Return the Unix time in *text*: seconds, or a date such as 2026-11-23T07:30; ValueError.

    A date without a time zone is in UTC.
    """
    try:
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else _parsed(text)
        show(seconds)  # A year beyond 9999 has no date.
        return seconds
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(
            f"{text!r} is not a time such as 2026-11-23, 2026-11-23T07:30 or Unix seconds"
        ) from error


def _parsed(text: str) -> float:
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


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
    """Return GPU-hours with three digits; nothing known is a dash."""
    if hours is None:
        return "–"
    if 0 < hours < 0.005:
        return "<0.01"
    return f"{hours:.2f}" if hours < 100 else f"{hours:,.0f}"


def money(dollars: float | None) -> str:
    """Return US$; nothing known is a dash."""
    if dollars is None:
        return "–"
    if 0 < dollars < 0.005:
        return "<$0.01"
    return f"${dollars:.2f}" if dollars < 1000 else f"${dollars:,.0f}"
