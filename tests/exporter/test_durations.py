"""Durations are read and written as Prometheus reads and writes them."""

import pytest

from exporter.durations import parse, show


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300.0),
        ("1h30m", 5_400.0),
        ("500ms", 0.5),
        ("2d", 172_800.0),
        ("1w", 604_800.0),
        ("0s", 0.0),
    ],
)
def test_duration_is_read_as_prometheus_reads_it(text: str, seconds: float) -> None:
    """A duration is a sum of numbers with units."""
    assert parse(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-5m", "5m!", "1.5h", "5x"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A number without a unit is not guessed at."""
    with pytest.raises(ValueError, match="is not a duration such as 5m"):
        parse(text)


@pytest.mark.parametrize("text", ["5m", "1h", "500ms", "90s", "1s"])
def test_duration_is_shown_as_it_is_given(text: str) -> None:
    """The documented default can be pasted back as a flag."""
    assert show(parse(text)) == text
