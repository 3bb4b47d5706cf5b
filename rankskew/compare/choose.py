"""Finds the two sides that A..B names, in a Prometheus or in recorded traces, and compares them."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from exporter import durations
from exporter.errors import UsageError
from rank_probe.judge.judge import WARMUP_STEPS
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus, selector
from rankskew.compare.comparison import Comparison, compare
from rankskew.compare.from_prometheus import last_period, prometheus_side
from rankskew.compare.from_trace import trace_side
from rankskew.replay.traces import Run, TraceTimeline, run_of, timeline
from rankskew.times import CLOCK_ERROR_SECONDS, Period, from_end, moment
from rankskew.wording import clock, few

SIDES: Final = ("Before", "After")
JOB: Final = "job:"
EXAMPLES: Final = (
    "14:05..14:20, -40m..-10m, 13:50/14:05..14:20/14:40, job:OLD..job:NEW or, of a trace, "
    "100-400..500-900"
)
CLOCK_OF_RUN: Final = re.compile(r"(\d+):(\d{2}):(\d{2})")
STEPS: Final = re.compile(r"(\d+)-(\d+)")


def compare_recorded(
    prometheus: Prometheus,
    asked: str,
    window_seconds: float,
    now: float,
    job_id: str | None = None,
    cluster: str | None = None,
) -> Comparison:
    """Compare the two sides of *asked*, A..B, as a Prometheus knows them at the Unix time *now*.

    Raises UsageError if *asked* is no A..B, and Trouble if the Prometheus cannot tell.
    """
    parts = two_parts(asked)
    if jobs := _two_jobs(parts):
        those = [last_period(prometheus, job, cluster, window_seconds) for job in jobs]
    else:
        those = list(periods(parts, window_seconds, now, moment))
        jobs = [_job(prometheus, job_id, cluster, those)] * 2
    before, after = (
        prometheus_side(prometheus, job, cluster, f"{word} ({_clock(period)})", period)
        for word, job, period in zip(SIDES, jobs, those, strict=True)
    )
    return compare(before, after)


def compare_traces(
    runs: Sequence[Run], asked: str, window_seconds: float, job_id: str | None = None
) -> Comparison:
    """Compare the two sides of *asked*, A..B, in *runs*; raises UsageError if these lack them."""
    parts = two_parts(asked)
    if jobs := _two_jobs(parts):
        chosen = [run_of(runs, job) for job in jobs]
        names = [f"job {run.job_id}" for run in chosen]
        numbers = [sorted(run.steps)[WARMUP_STEPS:] for run in chosen]
    else:
        chosen = [run_of(runs, job_id)] * 2
        names, numbers = _steps(chosen[0], parts, window_seconds)
    before, after = (
        trace_side(run, f"{word} ({name})", those)
        for run, word, name, those in zip(chosen, SIDES, names, numbers, strict=True)
    )
    return compare(before, after)


def _two_jobs(parts: tuple[str, str]) -> list[str]:
    jobs = [job for part in parts if (job := job_of(part)) is not None]
    if len(jobs) == 1:
        raise UsageError("compare takes two jobs, job:OLD..job:NEW, or two times of one job")
    return jobs


def _job(
    prometheus: Prometheus, job_id: str | None, cluster: str | None, those: Sequence[Period]
) -> str:
    """Return the job *job_id*, or the only one that ran at the end of both periods."""
    where = selector(cluster=cluster, job_id=job_id, rank="0")
    query = f"group by (cluster, job_id) (rankskew_steps_total{{{where}}})"
    first, last = (
        {(each["job_id"], each["cluster"]) for each in prometheus.query(query, period.end)}
        for period in those
    )
    both = sorted(first & last)
    jobs = sorted({job for job, _ in both})
    if len(both) == 1:
        return jobs[0]
    if not jobs and job_id is not None:
        raise Trouble(
            f"This Prometheus has no steps of a job {job_id!r} at the end of both periods."
        )
    if not jobs:
        raise Trouble(
            "No job ran at the end of both periods; compare takes two as job:OLD..job:NEW."
        )
    if len(jobs) == 1:
        clusters = ", ".join(cluster for _, cluster in both)
        raise Trouble(f"Several clusters have a job {jobs[0]!r}; give --cluster: {clusters}.")
    raise Trouble(f"Give --job; these ran in both periods: {few(jobs)}.")


def _steps(
    run: Run, parts: tuple[str, str], window_seconds: float
) -> tuple[list[str], list[list[int]]]:
    """Return a name and the steps of each side."""
    ranges = [found for part in parts if (found := steps_of(part)) is not None]
    if len(ranges) == 1:
        raise UsageError("compare takes two ranges of steps, such as 100-400..500-900")
    if ranges:
        return [f"steps {first} to {last}" for first, last in ranges], [
            [step for step in run.steps if first <= step <= last] for first, last in ranges
        ]
    line = timeline(run, 1.0)
    those = periods(parts, window_seconds, line.seconds, moment_of_run)
    return [_clock_of_run(period) for period in those], [_within(line, each) for each in those]


def _within(line: TraceTimeline, period: Period) -> list[int]:
    """Return the steps that ended in *period* for all of their ranks."""
    ends: dict[int, float] = {}
    for of_rank in line.ends.values():
        for step, end in of_rank.items():
            ends[step] = max(ends.get(step, 0.0), end)
    return sorted(step for step, end in ends.items() if period.begin < end <= period.end)


def _clock(period: Period) -> str:
    begin, end = (datetime.fromtimestamp(at, UTC) for at in (period.begin, period.end))
    until = "%H:%M:%S" if begin.date() == end.date() else "%Y-%m-%d %H:%M:%S"
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:{until}} UTC"


def _clock_of_run(period: Period) -> str:
    return f"{clock(max(period.begin, 0.0))} to {clock(max(period.end, 0.0))}"


# ---- What A..B says ----------------------------------------------------------------------------


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
