import pytest

from exporter.nvml.readings.window import ReadingWindow


def test_empty_window_has_no_reading() -> None:
    """Before the first reading there is neither a mean nor a minimum."""
    window = ReadingWindow(15.0)

    assert (window.mean(), window.min()) == (None, None)


def test_what_happened_between_two_scrapes_is_seen() -> None:
    """A short dip is in the mean and the minimum until it is older than the window."""
    window = ReadingWindow(15.0)
    for now in range(100, 115):
        window.add(float(now), 0.0 if now == 103 else 90.0)

    assert window.mean() == pytest.approx(84.0)
    assert window.min() == 0.0

    for now in range(115, 119):
        window.add(float(now), 90.0)
    assert (window.mean(), window.min()) == (90.0, 90.0)
