from datetime import UTC, datetime

import pytest

from exporter.errors import UsageError
from rankskew.compare.choose import (
    job_of,
    moment_of_run,
    periods,
    steps_of,
    two_parts,
)
from rankskew.times import Period, moment

NOW = datetime(2026, 3, 4, 15, 0, tzinfo=UTC).timestamp()


def ask(before: str, after: str, window_seconds: float = 600) -> tuple[Period, Period]:
    return periods((before, after), window_seconds, NOW, moment)


@pytest.mark.parametrize("text", ["14:05", "14:05..", "..14:05", "a..b..c", ""])
def test_anything_but_two_parts_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not A\.\.B, such as 14:05\.\.14:20"):
        two_parts(text)


@pytest.mark.parametrize(
    ("asked", "before", "after"),
    [
        # A change between A and B is in neither window.
        (("14:05", "14:20"), (-3900, -3300), (-2400, -1800)),
        # What has not happened yet is cut off.
        (("-30m", "-5m"), (-2400, -1800), (-300, 0)),
        # Now is the last window, but it does not begin before A.
        (("-30m", "now"), (-2400, -1800), (-600, 0)),
        (("-5m", "now"), (-900, -300), (-300, 0)),
        (("13:50/14:05", "14:20/-10m"), (-4200, -3300), (-2400, -600)),
    ],
)
def test_windows_end_with_a_and_begin_with_b_and_periods_stay(
    asked: tuple[str, str], before: tuple[float, float], after: tuple[float, float]
) -> None:
    """Times are relative to now, in seconds."""
    wanted = [Period(NOW + begin, NOW + end) for begin, end in (before, after)]

    assert list(ask(*asked)) == wanted


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
    with pytest.raises(UsageError, match=message):
        ask(before, after)


def test_times_are_read_in_each_form() -> None:
    for text in ("14:05", "14:05:00", "2026-03-04T14:05", "2026-03-04 14:05:00", "-55m"):
        assert moment(text, NOW) == NOW - 3300
    assert moment(f"{NOW - 3300:.0f}", NOW) == NOW - 3300
    assert moment("1970-01-01T01:01:00+01:00", NOW) == 60
    # A clock time that is still to come was yesterday's.
    assert moment("15:30", NOW) == NOW + 1800 - 86_400


def test_times_of_a_recorded_run_count_from_its_begin_or_its_end() -> None:
    """They are written as durations, or as `rankskew replay` prints them."""
    times = [moment_of_run(text, 3600) for text in ("10m", "0:10:00", "-10m", "now")]

    assert times == [600, 600, 3000, 3600]
    with pytest.raises(UsageError, match="not a time of a recorded run"):
        moment_of_run("14:05", 3600)


def test_steps_and_jobs_are_recognised() -> None:
    assert steps_of("100-400") == (100, 400)
    assert steps_of("14:05") is None
    assert job_of("job:llama-7b") == "llama-7b"
    assert job_of("14:05") is None
    with pytest.raises(UsageError, match="400-100 ends before it begins"):
        steps_of("400-100")
