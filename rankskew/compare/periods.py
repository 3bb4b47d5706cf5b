"""Reads what is compared with what: `A..B`, two times, periods, ranges of steps or jobs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from exporter import durations
from exporter.errors import UsageError
from rankskew.times import CLOCK_ERROR_SECONDS, from_end

JOB: Final = "job:"
EXAMPLES: Final = (
    "14:05..14:20, -40m..-10m, 13:50/14:05..14:20/14:40, job:OLD..job:NEW or, of a trace, "
    "100-400..500-900"
)
CLOCK_OF_RUN: Final = re.compile(r"(\d+):(\d{2}):(\d{2})")
STEPS: Final = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Period:
    """From *begin* to *end*: Unix times, or seconds since a recorded run began."""

    begin: float
    end: float


def two_parts(text: str) -> tuple[str, str]:
    """Return A and B of *text*, A..B; raises UsageError."""
    parts = [part.strip() for part in text.split("..")]
    if len(parts) != 2 or not all(parts):
        raise UsageError(f"{text!r} is not A..B, such as {EXAMPLES}")
    return parts[0], parts[1]


def job_of(part: str) -> str | None:
    """Return the job that *part* names as job:NAME."""
    return part.removeprefix(JOB) if part.startswith(JOB) else None


def steps_of(part: str) -> tuple[int, int] | None:
    """Return the first and the last step of a range such as 100-400; None if it is none."""
    found = STEPS.fullmatch(part)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise UsageError(f"the range of steps {part} ends before it begins")
    return first, last


def periods(
    parts: tuple[str, str], window_seconds: float, now: float, read: Callable[[str, float], float]
) -> tuple[Period, Period]:
    """Return the two periods that *parts* mean, up to *now*, the end of all data.

    *read* returns the time that a text means: moment, or moment_of_run. A moment A stands for the
    window that ends then, B for the one that begins then and ends *now* at the latest; if B is
    *now*, for the last window, which begins not before A. Raises UsageError.
    """
    (begin, end), (begin_b, end_b) = (_ends(part, now, read) for part in parts)
    before = Period(end - window_seconds if begin is None else begin, end)
    if begin_b is None:
        begin_b = end_b if end_b < now else max(now - window_seconds, before.end)
        end_b = max(end_b, min(begin_b + window_seconds, now))
    if begin_b < before.end:
        raise UsageError(
            f"{parts[1]} begins before {parts[0]} ends; compare takes what came first first"
        )
    if end_b > now + CLOCK_ERROR_SECONDS or begin_b >= now:
        raise UsageError(f"{parts[1]} is later than all data; give a time before the end of it")
    return before, Period(begin_b, min(end_b, now))


def _ends(part: str, now: float, read: Callable[[str, float], float]) -> tuple[float | None, float]:
    """Return begin and end of a period; of a moment only that."""
    first, slash, last = part.partition("/")
    if not slash:
        return None, read(first, now)
    begin, end = read(first, now), read(last, now)
    if end <= begin:
        raise UsageError(f"the period {part} ends before it begins")
    return begin, end


def moment_of_run(text: str, run_seconds: float) -> float:
    """Return the seconds since the begin of a recorded run that *text* means; raises UsageError.

    10m and 0:10:00 count from its begin, -10m from its end.
    """
    try:
        if (at := from_end(text, run_seconds)) is not None:
            return at
        if clock := CLOCK_OF_RUN.fullmatch(text):
            return int(clock[1]) * 3600.0 + int(clock[2]) * 60.0 + int(clock[3])
        return durations.parse(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a time of a recorded run; give 10m or 0:10:00 from its begin, -10m "
            "from its end, or a range of steps such as 100-400"
        ) from error
