"""Finds the two sides that A..B names in a Prometheus, and compares them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from exporter.errors import UsageError
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus, selector
from rankskew.compare.comparison import Comparison, compare
from rankskew.compare.from_prometheus import last_period, prometheus_side
from rankskew.times import CLOCK_ERROR_SECONDS, Span, moment
from rankskew.wording import few

JOB: Final = "job:"
EXAMPLES: Final = "14:05..14:20, -40m..-10m, 13:50/14:05..14:20/14:40 or job:OLD..job:NEW"


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
    parts = [part.strip() for part in asked.split("..")]
    if len(parts) != 2 or not all(parts):
        raise UsageError(f"{asked!r} is not A..B, such as {EXAMPLES}")
    jobs = [part.removeprefix(JOB) for part in parts if part.startswith(JOB)]
    if len(jobs) == 1:
        raise UsageError("compare takes two jobs, job:OLD..job:NEW, or two times of one job")
    if jobs:
        those = [last_period(prometheus, job, cluster, window_seconds) for job in jobs]
    else:
        those = list(periods(parts, window_seconds, now))
        job, cluster = _job(prometheus, job_id, cluster, those)
        jobs = [job, job]
    before, after = (
        prometheus_side(prometheus, job, cluster, f"{word} ({_clock(period)})", period)
        for word, job, period in zip(("Before", "After"), jobs, those, strict=True)
    )
    return compare(before, after)


def _job(
    prometheus: Prometheus, job_id: str | None, cluster: str | None, those: Sequence[Span]
) -> tuple[str, str | None]:
    """Return the job *job_id*, or the only one that ran at the end of both periods; its cluster."""
    where = selector(cluster=cluster, job_id=job_id, rank="0")
    query = f"group by (cluster, job_id) (rankskew_steps_total{{{where}}})"
    first, last = (
        {(each["job_id"], each["cluster"]) for each in prometheus.query(query, end)}
        for _, end in those
    )
    both = sorted(first & last)
    jobs = sorted({job for job, _ in both})
    if len(both) == 1:
        return both[0][0], both[0][1] or None
    if not jobs:
        which = "No job" if job_id is None else f"No job {job_id!r}"
        raise Trouble(f"{which} ran at the end of both periods; two are job:OLD..job:NEW.")
    if len(jobs) == 1:
        clusters = ", ".join(cluster for _, cluster in both)
        raise Trouble(f"Several clusters have a job {jobs[0]!r}; give --cluster: {clusters}.")
    raise Trouble(f"Give --job; these ran in both periods: {few(jobs)}.")


def _clock(period: Span) -> str:
    begin, end = (datetime.fromtimestamp(at, UTC) for at in period)
    until = "%H:%M:%S" if begin.date() == end.date() else "%Y-%m-%d %H:%M:%S"
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:{until}} UTC"


# ---- The periods that A..B means ---------------------------------------------------------------


def periods(parts: Sequence[str], window_seconds: float, now: float) -> tuple[Span, Span]:
    """Return the two periods that *parts*, A and B, mean, up to *now*, the end of all data.

    A moment A means the window that ends then. A moment B means the window that begins then and
    ends by *now*; if B is *now*, the last window, which begins not before A. Raises UsageError.
    """
    (begin, end), (begin_b, end_b) = (_ends(part, now) for part in parts)
    begin = end - window_seconds if begin is None else begin
    if begin_b is None:
        begin_b = end_b if end_b < now else max(now - window_seconds, end)
        end_b = max(end_b, min(begin_b + window_seconds, now))
    if begin_b < end:
        raise UsageError(f"{parts[1]} begins before {parts[0]} ends; give the earlier period first")
    if end_b > now + CLOCK_ERROR_SECONDS or begin_b >= now:
        raise UsageError(f"{parts[1]} is later than all data; give a time before the end of it")
    return (begin, end), (begin_b, min(end_b, now))


def _ends(part: str, now: float) -> tuple[float | None, float]:
    """Return begin and end of a period; for a moment, None and the moment."""
    first, slash, last = part.partition("/")
    if not slash:
        return None, moment(first, now)
    begin, end = moment(first, now), moment(last, now)
    if end <= begin:
        raise UsageError(f"the period {part} ends before it begins")
    return begin, end
