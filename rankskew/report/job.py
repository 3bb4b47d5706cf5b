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


# ---- The series of a job -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSeries:
    """Expressions for the job with these labels; *cluster* None is any."""

    job_id: str
    cluster: str | None

    @property
    def labels(self) -> str:
        """Return the matchers of the job."""
        return selector(cluster=self.cluster, job_id=self.job_id)

    def of(self, name: str, matchers: str = "") -> str:
        """Return the series *name* of the job."""
        return f"{name}{{{self.labels}{matchers}}}"

    @property
    def alive(self) -> str:
        """Return how many ranks report, while any does."""
        return f"{self.of(BEATING)} > 0"

    def while_alive(self, expression: str) -> str:
        """Return *expression* while a rank reports: an ended job is exposed for a while."""
        return f"({expression}) and on (cluster, job_id) ({self.alive})"

    @property
    def late(self) -> str:
        """Return the GPUs lost by rank, stage and cause; one cause, even if an old one lingers."""
        lost = self.of("rank_stage:rankskew_gpus_lost:sum")
        cause = self.of("rankskew_late_cause_info")
        one = f"topk by (cluster, job_id, rank, instance) (1, {cause})"
        return f"{lost} * {SAME_RANK} group_left (cause) {one} or {lost} unless {SAME_RANK} {cause}"

    @property
    def slower(self) -> tuple[str, str, str]:
        """Return how many times as long stages take, since when, and what that costs in GPUs."""
        by = "by (cluster, job_id, scope, stage)"
        ratio = self.of("rankskew_job_change_ratio")
        since = self.of("rankskew_job_change_since_timestamp_seconds")
        return f"max {by} ({ratio})", f"min {by} ({since})", losses.slower_gpus(self.labels)


def search(
    prometheus: Prometheus, job_id: str, cluster: str | None, span: Span, interval_seconds: float
) -> tuple[JobSeries, Grid]:
    """Return the series of the job during *span*, and the times at which to read them.

    Raises Trouble if *prometheus* cannot tell, StartError if it has no such job or several.
    """
    long = (span[1] - span[0]) / SEARCH_POINTS
    coarse = grid(*span, interval_seconds, long)
    step = coarse.step_seconds
    counts = JobSeries(job_id, cluster).of(BEATING)
    # Up to the last step, so that a job of the last minutes is found too.
    found = PastSeries(prometheus).read(
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
    end = min(max(each.points[-1][0] for each in found) + interval_seconds, span[1])
    return JobSeries(job_id, clusters[0]), grid(begin, end, interval_seconds)


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


def read_job(
    prometheus: Prometheus,
    job_id: str,
    cluster: str | None,
    span: Span,
    gap_seconds: float,
) -> JobReport:
    """Return what is known of the job during *span*.

    Raises Trouble if *prometheus* cannot tell, StartError if it has no such job or several.
    """
    series, times = search(prometheus, job_id, cluster, span, rule_interval(prometheus))
    return _Reading(prometheus, series, times, span).report(gap_seconds)


class _Reading:
    """Reads *series* at *times*, of a job that was looked for during *span*."""

    def __init__(self, prometheus: Prometheus, series: JobSeries, times: Grid, span: Span) -> None:
        self._history, self._series, self._times = PastSeries(prometheus), series, times
        self._step = times.step_seconds
        self._alive = spans_of(self._history.read(series.alive, times), self._step)
        if not self._alive:
            raise StartError(f"job {series.job_id!r} was seen for less than {self._step:g} s")
        self._whole = self._alive[0][0], self._alive[-1][1]
        self._is_running = self._whole[1] >= span[1] - 4 * self._step
        self._gpus = _points(self._read("job:rankskew_world_size:max"))
        self._ranks = round(max((gpus for _, gpus in self._gpus), default=0))
        self._kinds = self._read("job_kind:rankskew_gpus_lost:sum")
        hung = spans_of([each for each in self._kinds if each["kind"] == losses.HUNG], self._step)
        self._parts = stretches(self._whole, hung)

    def report(self, gap_seconds: float) -> JobReport:
        """Return all that is known."""
        begin, end = self._whole
        hours = self._step / HOUR_SECONDS
        lost_at = dict(_points(self._read("job:rankskew_gpus_lost:sum")))
        judged = hours * sum(gpus for at, gpus in self._gpus if at in lost_at)
        prices = [value for _, value in _points(self._read("job:rankskew_gpu_hour_price:value"))]
        price = sum(prices) / len(prices) if prices else None
        ages = _points(self._read("job:rankskew_run_seconds:max"))
        states = self._sums("job:rankskew_state:info", "state")
        caused = self._caused()
        parts = losses.worth(self._losses(caused))
        lost = sum(part.gpu_hours for part in parts)
        slower, hours_slower = self._slower(gap_seconds)
        found = JobReport(
            job_id=self._series.job_id,
            cluster=self._series.cluster or "",
            begin=iso(begin),
            end=iso(end),
            unseen_seconds=max(0.0, ages[0][1] - UNSEEN_SECONDS) if ages else 0.0,
            is_running=self._is_running,
            step_seconds=self._step,
            alive_seconds=seconds(self._alive),
            ranks=self._ranks,
            gpu_hours=hours * sum(gpus for _, gpus in self._gpus),
            gpu_hours_judged=judged,
            gpu_hours_lost=lost,
            gpu_hours_lost_by_gauges=hours * sum(lost_at.values()),
            counted_by_ranks=bool(caused),
            efficiency=max(0.0, 1 - lost / judged) if judged else None,
            dollars_per_gpu_hour=price,
            dollars_lost=None,
            losses=parts,
            gpu_hours_slower=hours_slower,
            slower=slower,
            state_seconds={
                state: each * HOUR_SECONDS for (state,), each in states.items() if state
            },
            standstill_share=self._standstill(),
            restarts=[iso(at) for at in restarts(ages, self._step)],
            incidents=read_incidents(self._history, self._times, self._series.labels, gap_seconds),
        )
        return found if price is None else _priced(found, price)

    def _read(self, name: str) -> list[Series]:
        return self._while_alive(self._series.of(name))

    def _while_alive(self, expression: str) -> list[Series]:
        return self._history.read(self._series.while_alive(expression), self._times)

    def _sums(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return the hours times the value of the series *name*, by *labels*."""
        return losses.integral(self._read(name), self._step, *labels)

    def _losses(self, caused: dict[tuple[str, ...], float]) -> list[Loss]:
        """Return the parts of the loss."""
        kinds = losses.integral(self._kinds, self._step, "kind")
        late = self._while_alive(self._series.late)
        named = losses.integral(late, self._step, "rank", "stage", "cause")
        of_kind = {kind: each for (kind,), each in kinds.items()}
        if caused:
            found = losses.counted(caused, named)
        else:
            rotating = self._sums("job_stage:rankskew_gpus_lost:sum", "stage")
            found = losses.gauged(of_kind, named, rotating)
        suspects = self._sums("rank_stage:rankskew_hang_suspect:group", "rank", "stage")
        found += losses.hung(of_kind.get(losses.HUNG, 0.0), suspects)
        found.append(Loss(losses.GROUP, of_kind.get(losses.GROUP, 0.0)))
        found.append(Loss(losses.COMMON, of_kind.get(losses.COMMON, 0.0)))
        return found

    def _slower(self, gap_seconds: float) -> tuple[list[Slowdown], float]:
        """Return when the whole job was slower than before, and the GPU-hours that it cost."""
        ratios, onsets, gpus = map(self._while_alive, self._series.slower)
        return losses.slowdowns(ratios, onsets, gpus, self._whole[0], self._step, gap_seconds)

    def _caused(self) -> dict[tuple[str, ...], float]:
        """Return the GPU-hours that ranks caused, by counters; none if these are not read."""
        if self._ranks > MOST_COUNTED_RANKS:
            return {}
        grown = growth(
            self._history,
            self._series.of("rankskew_wait_caused_seconds_total"),
            ("rank", "stage"),
            self._parts,
            self._times,
            self._ranks * STAGES_OF_A_RANK,
            self._ranks,
        )
        return {where: each / HOUR_SECONDS for where, each in grown.items()}

    def _standstill(self) -> dict[str, float]:
        """Return the share of the time of the rank that was longest in each of STANDSTILL."""
        some = SOME_RANKS if self._ranks > MOST_COUNTED_RANKS else ""
        stages = f',stage=~"{"|".join(STANDSTILL)}"{some}'
        grown = growth(
            self._history,
            self._series.of("rankskew_stage_seconds_total", stages),
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


def _points(found: Sequence[Series]) -> list[Point]:
    """Return the values of a series that a job has once."""
    return sorted(point for each in found for point in each.points)


def restarts(ages: Sequence[Point], step: float) -> list[float]:
    """Return when the job's oldest process was younger than the last look at the job.

    The exporter's word may be as old as two steps.
    """
    return [
        at
        for (before, age_before), (at, age) in pairwise(ages)
        if age < age_before and age <= at - before + 2 * step
    ]
