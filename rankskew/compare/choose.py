"""Finds the two sides that A..B names, in a Prometheus or in recorded traces, and compares them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from exporter.errors import UsageError
from rank_probe.judge.judge import WARMUP_STEPS
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus, selector
from rankskew.compare.comparison import Comparison, compare
from rankskew.compare.from_prometheus import last_period, prometheus_side
from rankskew.compare.from_trace import trace_side
from rankskew.compare.periods import (
    Period,
    job_of,
    moment_of_run,
    periods,
    steps_of,
    two_parts,
)
from rankskew.replay.timeline import TraceTimeline, timeline
from rankskew.replay.traces import Run, run_of
from rankskew.times import moment
from rankskew.wording import clock, few

SIDES: Final = ("Before", "After")


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
