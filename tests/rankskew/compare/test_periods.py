from datetime import UTC, datetime

import pytest

from exporter.errors import UsageError
from rankskew.compare.periods import (
    Period,
    job_of,
    moment,
    moment_of_run,
    periods,
    steps_of,
    two_parts,
)

NOW = datetime(2026, 3, 4, 15, 0, tzinfo=UTC).timestamp()


def ask(before: str, after: str, window_seconds: float = 600) -> tuple[Period, Period]:
    return periods((before, after), window_seconds, NOW, moment)


@pytest.mark.parametrize("text", ["14:05", "14:05..", "..14:05", "a..b..c", ""])
def test_anything_but_two_parts_is_refused(text: str) -> None:
    """The message shows what A..B may be."""
    with pytest.raises(UsageError, match=r"is not A\.\.B, such as 14:05\.\.14:20"):
        two_parts(text)


def test_a_window_ends_with_a_and_another_begins_with_b() -> None:
    """A change between A and B is in neither window."""
    before, after = ask("14:05", "14:20")

    assert before == Period(NOW - 3300 - 600, NOW - 3300)
    assert after == Period(NOW - 2400, NOW - 1800)


def test_what_has_not_happened_yet_is_cut_off() -> None:
    """The window after B ends now at the latest."""
    assert ask("-30m", "-5m")[1] == Period(NOW - 300, NOW)


def test_now_is_the_last_window() -> None:
    """If B is now, the window ends there, but it does not begin before A."""
    assert ask("-30m", "now")[1] == Period(NOW - 600, NOW)
    assert ask("-5m", "now")[1] == Period(NOW - 300, NOW)


def test_periods_are_taken_as_they_are() -> None:
    """With two ends each, the window does not matter."""
    before, after = ask("13:50/14:05", "14:20/-10m")

    assert before == Period(NOW - 4200, NOW - 3300)
    assert after == Period(NOW - 2400, NOW - 600)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("14:20", "14:05", "begins before"),
        ("14:05/14:00", "14:20", "ends before it begins"),
        ("-20m", "2026-03-04T15:30", "later than all data"),
        ("-20m", "-10m/2026-03-04T15:30", "later than all data"),
        ("yesterday", "now", "'yesterday' is not a time; give 14:05"),
        ("25:00", "now", "is not a time"),
        ("-5", "now", "is not a time"),
    ],
)
def test_bad_periods_are_refused_in_a_sentence(before: str, after: str, message: str) -> None:
    """Each mistake has a sentence that names it."""
    with pytest.raises(UsageError, match=message):
        ask(before, after)


def test_times_are_read_in_each_form() -> None:
    """A clock time, a date, a time ago and Unix seconds may name the same moment."""
    for text in ("14:05", "14:05:00", "2026-03-04T14:05", "2026-03-04 14:05:00", "-55m"):
        assert moment(text, NOW) == NOW - 3300
    assert moment(f"{NOW - 3300:.0f}", NOW) == NOW - 3300
    assert moment("1970-01-01T01:01:00+01:00", NOW) == 60


def test_a_clock_time_that_is_still_to_come_was_yesterday() -> None:
    """Shortly after midnight, 23:50 is ten minutes ago."""
    assert moment("15:30", NOW) == NOW + 1800 - 86_400


def test_times_of_a_recorded_run_count_from_its_begin_or_its_end() -> None:
    """They are written as durations, or as `rankskew replay` prints them."""
    assert moment_of_run("10m", 3600) == 600
    assert moment_of_run("0:10:00", 3600) == 600
    assert moment_of_run("-10m", 3600) == 3000
    assert moment_of_run("now", 3600) == 3600
    with pytest.raises(UsageError, match="not a time of a recorded run"):
        moment_of_run("14:05", 3600)


def test_steps_and_jobs_are_recognised() -> None:
    """A range of steps is two numbers, a job has a prefix."""
    assert steps_of("100-400") == (100, 400)
    assert steps_of("14:05") is None
    assert job_of("job:llama-7b") == "llama-7b"
    assert job_of("14:05") is None
    with pytest.raises(UsageError, match="400-100 ends before it begins"):
        steps_of("400-100")
