"""What a Prometheus remembers of one job: how long it ran, what it lost, what happened to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from exporter.errors import StartError
from rankskew.client.prometheus import Prometheus, Series, selector
from rankskew.report import losses
from rankskew.report.history import (
    Grid,
    PastSeries,
    Point,
    grid,
    growth,
    rule_interval,
    spans_of,
    stretches,
)
from rankskew.report.incidents import Incident, read_incidents
from rankskew.report.losses import Loss, Slowdown
from rankskew.times import HOUR_SECONDS, Span, iso, seconds, to_minute
from rankskew.wording import few

# The counters of larger jobs are not read: 16,384 ranks would be 100,000 series.
MOST_COUNTED_RANKS: Final = 256
STAGES_OF_A_RANK: Final = 6
# In these stages a rank does not train. Of a large job, ranks with one or two digits are read.
STANDSTILL: Final = ("checkpoint", "eval")
SOME_RANKS: Final = ',rank=~"..?"'
# A process is as old when it has imported torch and is scraped for the first time.
UNSEEN_SECONDS: Final = 120.0
# The search for the job takes one query.
SEARCH_POINTS: Final = 1_000
BEATING: Final = "job:rankskew_ranks_beating:sum"
CAUSE: Final = "rankskew_late_cause_info"
SAME_RANK: Final = "on (cluster, job_id, rank, instance)"


@dataclass(frozen=True, slots=True)
class JobReport:
    """What is known of a job, with the losses that add up to gpu_hours_lost."""

    job_id: str
    """Id of the job."""
    cluster: str
    """Label cluster of the job in Prometheus; empty without one."""
    begin: str
    """When a rank was first seen to report, ISO 8601 in UTC."""
    end: str
    """When a rank was last seen to report, ISO 8601 in UTC."""
    unseen_seconds: float
    """Seconds that it had run, at least, when first seen; 0 if seen from its start."""
    is_running: bool
    """Whether it still ran at the end of the period."""
    step_seconds: float
    """Seconds from one reading of the series to the next."""
    alive_seconds: float
    """For how many seconds any of its ranks reported."""
    ranks: int
    """How many ranks it had, at most."""
    gpu_hours: float
    """GPU-hours that it had."""
    gpu_hours_judged: float
    """GPU-hours of these in which its loss was known."""
    gpu_hours_lost: float
    """GPU-hours in which GPUs did nothing but wait, the sum of the losses."""
    gpu_hours_lost_by_gauges: float
    """The same by the means of a minute alone that the rules record."""
    counted_by_ranks: bool
    """Whether losses to late ranks are those that the ranks counted, step by step."""
    efficiency: float | None
    """Share of the judged GPU-hours that was not lost, 0 to 1; null if none was judged."""
    dollars_per_gpu_hour: float | None
    """US$ of a GPU-hour, a mean; null if no price is recorded."""
    dollars_lost: float | None
    """US$ of the lost GPU-hours; null without a price."""
    losses: Sequence[Loss]
    """Parts of the loss, the largest first; they add up to gpu_hours_lost."""
    gpu_hours_slower: float
    """GPU-hours that the pace before would have saved; no part of gpu_hours_lost."""
    slower: Sequence[Slowdown]
    """Every time in which the job, or a part, was slower than before, in order."""
    state_seconds: Mapping[str, float]
    """For how many seconds the job was in each state of docs/concepts.md, by state."""
    standstill_share: Mapping[str, float]
    """Share of its time that the rank with the most spent in checkpoint and in eval, by stage."""
    restarts: Sequence[str]
    """When all of its processes were new, ISO 8601 in UTC."""
    incidents: Sequence[Incident]
    """Alerts that fired for it, in the order of their begin."""

    def dollars(self, gpu_hours: float) -> float | None:
        """Return what *gpu_hours* cost; None without a price."""
        price = self.dollars_per_gpu_hour
        return None if price is None else gpu_hours * price


# ---- Where it is -------------------------------------------------------------------------------


def read_job(
    prometheus: Prometheus, job_id: str, cluster: str | None, span: Span, gap_seconds: float
) -> JobReport:
    """Return what is known of the job during *span*.

    Raises Trouble if *prometheus* cannot tell, StartError if it has no such job or several.
    """
    history, interval = PastSeries(prometheus), rule_interval(prometheus)
    long = (span[1] - span[0]) / SEARCH_POINTS
    coarse = grid(*span, interval, long)
    step = coarse.step_seconds
    counts = f"{BEATING}{{{selector(cluster=cluster, job_id=job_id)}}}"
    # Up to the last step, so that a job of the last minutes is found too.
    found = history.read(
        f"max_over_time({counts}[{step * 1000:.0f}ms]) > 0",
        Grid(coarse.begin, coarse.end + step, step),
    )
    if not found:
        raise StartError(_none(prometheus, job_id, cluster, span))
    clusters = sorted({each["cluster"] for each in found})
    if len(clusters) > 1:
        raise StartError(
            f"several clusters have a job {job_id!r}; give one: --cluster {clusters[0]!r}"
        )
    begin = max(min(each.points[0][0] for each in found) - step, span[0])
    end = min(max(each.points[-1][0] for each in found) + interval, span[1])
    times = grid(begin, end, interval)
    return _Reading(history, job_id, clusters[0], times).report(span[1], gap_seconds)


def _none(prometheus: Prometheus, job_id: str, cluster: str | None, span: Span) -> str:
    """Return the sentence that says which jobs there were instead."""
    begin, end = span
    where = f"from {to_minute(iso(begin))} to {to_minute(iso(end))} UTC"
    those = f"{BEATING}{{{selector(cluster=cluster)}}}[{end - begin:.0f}s]"
    seen = prometheus.query(f"group by (job_id) (last_over_time({those}))", end)
    names = sorted({sample["job_id"] for sample in seen})
    if not names:
        there = "" if cluster is None else f" in cluster {cluster!r}"
        return f"no job was seen{there} {where}; rankskew report --incidents says what fired"
    return f"there was no job {job_id!r} {where}; there were: {few(names)}"


# ---- What is read of it --------------------------------------------------------------------------


class _Reading:
    """Reads the series of a job at *times*."""

    def __init__(self, history: PastSeries, job_id: str, cluster: str, times: Grid) -> None:
        self._history, self._times, self._step = history, times, times.step_seconds
        self._job_id, self._cluster = job_id, cluster
        self._labels = selector(cluster=cluster, job_id=job_id)
        self._is_alive = f"{self._of(BEATING)} > 0"
        self._alive = spans_of(history.read(self._is_alive, times), self._step)
        if not self._alive:
            raise StartError(f"job {job_id!r} was seen for less than {self._step:g} s")
        self._whole = self._alive[0][0], self._alive[-1][1]
        self._gpus = self._points("job:rankskew_world_size:max")
        self._ranks = round(max((gpus for _, gpus in self._gpus), default=0))

    def _of(self, name: str, matchers: str = "") -> str:
        """Return the series *name* of the job."""
        return f"{name}{{{self._labels}{matchers}}}"

    def _read(self, expression: str) -> list[Series]:
        """Return *expression* while a rank reports: an ended job is exposed for a while."""
        whole = f"({expression}) and on (cluster, job_id) ({self._is_alive})"
        return self._history.read(whole, self._times)

    def _points(self, name: str) -> list[Point]:
        """Return the values of a series that a job has once."""
        return sorted(point for each in self._read(self._of(name)) for point in each.points)

    def _hours(self, expression: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return the hours times the value of *expression*, by *labels*."""
        return losses.integral(self._read(expression), self._step, *labels)

    def report(self, until: float, gap_seconds: float) -> JobReport:
        """Return all that is known; *until* is the end of the period that is looked at."""
        begin, end = self._whole
        hours = self._step / HOUR_SECONDS
        lost_at = dict(self._points("job:rankskew_gpus_lost:sum"))
        judged = hours * sum(gpus for at, gpus in self._gpus if at in lost_at)
        prices = [value for _, value in self._points("job:rankskew_gpu_hour_price:value")]
        price = sum(prices) / len(prices) if prices else None
        ages = self._points("job:rankskew_run_seconds:max")
        states = self._hours(self._of("job:rankskew_state:info"), "state")
        parts, is_counted = self._losses()
        lost = sum(part.gpu_hours for part in parts)
        slower, hours_slower = self._slower(gap_seconds)
        found = JobReport(
            job_id=self._job_id,
            cluster=self._cluster,
            begin=iso(begin),
            end=iso(end),
            unseen_seconds=max(0.0, ages[0][1] - UNSEEN_SECONDS) if ages else 0.0,
            is_running=end >= until - 4 * self._step,
            step_seconds=self._step,
            alive_seconds=seconds(self._alive),
            ranks=self._ranks,
            gpu_hours=hours * sum(gpus for _, gpus in self._gpus),
            gpu_hours_judged=judged,
            gpu_hours_lost=lost,
            gpu_hours_lost_by_gauges=hours * sum(lost_at.values()),
            counted_by_ranks=is_counted,
            efficiency=max(0.0, 1 - lost / judged) if judged else None,
            dollars_per_gpu_hour=price,
            dollars_lost=None,
            losses=parts,
            gpu_hours_slower=hours_slower,
            slower=slower,
            state_seconds={name: each * HOUR_SECONDS for (name,), each in states.items() if name},
            standstill_share=self._standstill(),
            restarts=[iso(at) for at in restarts(ages, self._step)],
            incidents=read_incidents(self._history, self._times, self._labels, gap_seconds),
        )
        return found if price is None else _priced(found, price)

    def _losses(self) -> tuple[list[Loss], bool]:
        """Return the parts of the loss, and whether the ranks have counted what they caused."""
        kinds = self._read(self._of("job_kind:rankskew_gpus_lost:sum"))
        of_kind = losses.integral(kinds, self._step, "kind")
        lost, cause = self._of("rank_stage:rankskew_gpus_lost:sum"), self._of(CAUSE)
        # One cause, even if an old one lingers.
        one = f"topk by (cluster, job_id, rank, instance) (1, {cause})"
        named = self._hours(
            f"{lost} * {SAME_RANK} group_left (cause) {one} or {lost} unless {SAME_RANK} {cause}",
            *("rank", "stage", "cause"),
        )
        hung = spans_of([each for each in kinds if each["kind"] == losses.HUNG], self._step)
        if caused := self._caused(stretches(self._whole, hung)):
            found = losses.counted(caused, named)
        else:
            rotating = self._hours(self._of("job_stage:rankskew_gpus_lost:sum"), "stage")
            found = losses.gauged(of_kind, named, rotating)
        suspects = self._hours(self._of("rank_stage:rankskew_hang_suspect:group"), "rank", "stage")
        found += losses.hung(of_kind.get((losses.HUNG,), 0.0), suspects)
        found.append(Loss(losses.GROUP, of_kind.get((losses.GROUP,), 0.0)))
        found.append(Loss(losses.COMMON, of_kind.get((losses.COMMON,), 0.0)))
        return losses.worth(found), bool(caused)

    def _caused(self, parts: Sequence[Span]) -> dict[tuple[str, ...], float]:
        """Return the GPU-hours that ranks caused, by counters; none if these are not read."""
        if self._ranks > MOST_COUNTED_RANKS:
            return {}
        counter = self._of("rankskew_wait_caused_seconds_total")
        series = self._ranks * STAGES_OF_A_RANK
        grown = growth(
            self._history, counter, ("rank", "stage"), parts, self._times, series, self._ranks
        )
        return {where: each / HOUR_SECONDS for where, each in grown.items()}

    def _slower(self, gap_seconds: float) -> tuple[list[Slowdown], float]:
        """Return when the whole job was slower than before, and the GPU-hours that it cost."""
        by = "by (cluster, job_id, scope, stage)"
        ratios = self._read(f"max {by} ({self._of('rankskew_job_change_ratio')})")
        since = self._of("rankskew_job_change_since_timestamp_seconds")
        onsets = self._read(f"min {by} ({since})")
        gpus = self._read(losses.slower_gpus(self._labels))
        return losses.slowdowns(ratios, onsets, gpus, self._whole[0], self._step, gap_seconds)

    def _standstill(self) -> dict[str, float]:
        """Return the share of the time of the rank that was longest in each of STANDSTILL."""
        some = SOME_RANKS if self._ranks > MOST_COUNTED_RANKS else ""
        stages = f',stage=~"{"|".join(STANDSTILL)}"{some}'
        grown = growth(
            self._history,
            self._of("rankskew_stage_seconds_total", stages),
            ("stage", "rank"),
            [self._whole],
            self._times,
            min(self._ranks, MOST_COUNTED_RANKS) * len(STANDSTILL),
            1.0,
        )
        long = self._whole[1] - self._whole[0]
        return {
            stage: most / long
            for stage in STANDSTILL
            if (most := max((s for (of, _), s in grown.items() if of == stage), default=0.0))
        }


def _priced(found: JobReport, price: float) -> JobReport:
    """Return the report with what its GPU-hours cost."""
    return replace(
        found,
        dollars_lost=found.gpu_hours_lost * price,
        losses=[replace(each, dollars=each.gpu_hours * price) for each in found.losses],
        slower=[replace(each, dollars=each.gpu_hours * price) for each in found.slower],
    )


def restarts(ages: Sequence[Point], step: float) -> list[float]:
    """Return when the job's oldest process was younger than the last look at the job.

    The exporter's word may be as old as two steps.
    """
    return [
        at
        for (before, age_before), (at, age) in pairwise(ages)
        if age < age_before and age <= at - before + 2 * step
    ]
