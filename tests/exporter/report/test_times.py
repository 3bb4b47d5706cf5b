"""Times and amounts as people read them."""

import pytest

from exporter.report import times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("86400", 86400.0),
        ("86400.5", 86400.5),
        ("1970-01-02", 86400.0),
        ("1970-01-02T01:00", 90000.0),
        ("1970-01-02T01:00+01:00", 86400.0),
    ],
)
def test_times_are_read(text: str, seconds: float) -> None:
    """Seconds or a date; without a zone it is in UTC."""
    assert times.parse(text) == seconds


@pytest.mark.parametrize("text", ["", "now", "yesterday", "2026-13-01", "9" * 400])
def test_anything_else_is_no_time(text: str) -> None:
    """The message says what a time looks like."""
    with pytest.raises(ValueError, match="not a time such as 2026-11-23"):
        times.parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0.4s"),
        (12, "12s"),
        (450, "7m 30s"),
        (18_720, "5h 12m"),
        (18_750, "5h 12m"),
        (273_600, "3d 4h"),
        (86_400 + 59, "1d"),
    ],
)
def test_lengths_have_two_units(seconds: float, text: str) -> None:
    """The two largest units that follow each other."""
    assert times.length(seconds) == text


def test_amounts() -> None:
    """What is not known is not 0, and what is little is not nothing."""
    assert [times.gpu_hours(h) for h in (None, 0, 0.001, 1.234, 1234.5)] == [
        *("–", "0.00", "<0.01", "1.23"),
        "1,234",
    ]
    assert [times.money(m) for m in (None, 0, 0.001, 1.5, 12345)] == [
        *("–", "$0.00", "<$0.01", "$1.50"),
        "$12,345",
    ]
