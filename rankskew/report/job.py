"""What a Prometheus remembers of one job: how long it ran, what it lost, what happened to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from exporter.errors import StartError
from rankskew.client.prometheus import Prometheus, Series
from rankskew.report import losses
from rankskew.report.history import (
    Grid,
    PastSeries,
    Point,
    growth,
    rule_interval,
    spans_of,
    stretches,
)
from rankskew.report.incidents import CostedIncident, read_incidents
from rankskew.report.job_search import JobSeries, search
from rankskew.report.losses import Loss, Slowdown
from rankskew.report.times import HOUR_SECONDS, Span

# The counters of larger jobs are not read: 16,384 ranks would be 100,000 series.
MOST_COUNTED_RANKS: Final = 256
STAGES_OF_A_RANK: Final = 6
# In these stages a rank does not train. Of a large job, ranks with one or two digits are read.
STANDSTILL: Final = ("checkpoint", "eval")
SOME_RANKS: Final = ',rank=~"..?"'
# A process is as old when it has imported torch and is scraped for the first time.
UNSEEN_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class JobReport:
    """What is known of a job; times in Unix seconds, *times* are those at which it was read.

    *alive* is when ranks reported; for *unseen_seconds* before it the job had run already.
    *gpu_seconds* are those that it had, *judged_seconds* those of them in which its loss is known.
    *states* has seconds, *standstill* the share of the time of the rank that spent most in each
    stage. *slower* are the times in which the whole job was slower than before. *price* is in
    US$ per GPU-hour, None if not recorded.
    *gauge_seconds* is the loss by the rules' gauges alone, to compare with *lost_seconds*.
    """

    job_id: str
    cluster: str
    times: Grid
    alive: Sequence[Span]
    is_running: bool
    unseen_seconds: float
    world_size: int
    gpu_seconds: float
    judged_seconds: float
    losses: Sequence[Loss]
    is_counted: bool
    gauge_seconds: float
    states: Mapping[str, float]
    standstill: Mapping[str, float]
    restarts: Sequence[float]
    slower: Sequence[Slowdown]
    price: float | None
    incidents: Sequence[CostedIncident]

    @property
    def lost_seconds(self) -> float:
        """Return the GPU-seconds that it lost: the sum of its losses."""
        return sum(loss.gpu_seconds for loss in self.losses)

    @property
    def efficiency(self) -> float | None:
        """Return the share of the GPUs, while the loss is known, that was not lost."""
        known = self.judged_seconds
        return max(0.0, 1 - self.lost_seconds / known) if known else None

    def dollars(self, gpu_seconds: float) -> float | None:
        """Return what *gpu_seconds* cost."""
        return None if self.price is None else gpu_seconds / HOUR_SECONDS * self.price


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
        lost = dict(_points(self._read("job:rankskew_gpus_lost:sum")))
        states = self._sums("job:rankskew_state:info", "state")
        prices = _points(self._read("job:rankskew_gpu_hour_price:value"))
        caused = self._caused()
        ages = _points(self._read("job:rankskew_run_seconds:max"))
        return JobReport(
            job_id=self._series.job_id,
            cluster=self._series.cluster or "",
            times=self._times,
            alive=self._alive,
            is_running=self._is_running,
            unseen_seconds=max(0.0, ages[0][1] - UNSEEN_SECONDS) if ages else 0.0,
            world_size=self._ranks,
            gpu_seconds=self._step * sum(gpus for _, gpus in self._gpus),
            judged_seconds=self._step * sum(gpus for at, gpus in self._gpus if at in lost),
            losses=losses.worth(self._losses(caused)),
            is_counted=bool(caused),
            gauge_seconds=self._step * sum(lost.values()),
            states={state: each for (state,), each in states.items() if state},
            standstill=self._standstill(),
            restarts=restarts(ages, self._step),
            slower=self._slower(gap_seconds),
            price=sum(value for _, value in prices) / len(prices) if prices else None,
            incidents=read_incidents(self._history, self._times, self._series.labels, gap_seconds),
        )

    def _read(self, name: str) -> list[Series]:
        return self._while_alive(self._series.of(name))

    def _while_alive(self, expression: str) -> list[Series]:
        return self._history.read(self._series.while_alive(expression), self._times)

    def _sums(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return the integral of the series *name* by *labels*."""
        return losses.integral(self._read(name), self._step, *labels)

    def _losses(self, caused: dict[tuple[str, ...], float]) -> list[Loss]:
        """Return the parts of the loss."""
        kinds = losses.integral(self._kinds, self._step, "kind")
        late = self._while_alive(self._series.late)
        named = losses.integral(late, self._step, "rank", "stage", "cause")
        of_kind = {losses.KINDS.get(kind, kind): each for (kind,), each in kinds.items()}
        if caused:
            found = losses.counted(caused, named)
        else:
            stages = self._sums("job_stage:rankskew_gpus_lost:sum", "stage")
            found = losses.gauged(of_kind, named, {s: each for (s,), each in stages.items()})
        suspects = self._sums("rank_stage:rankskew_hang_suspect:group", "rank", "stage")
        found += losses.hung(of_kind.pop(losses.HUNG, 0.0), suspects)
        found += [Loss(kind, of_kind.get(kind, 0.0)) for kind in (losses.GROUP, losses.COMMON)]
        return found

    def _slower(self, gap_seconds: float) -> list[Slowdown]:
        """Return when the whole job was slower than before."""
        ratios, onsets, gpus = map(self._while_alive, self._series.slower)
        return losses.slowdowns(ratios, onsets, gpus, self._whole[0], self._step, gap_seconds)

    def _caused(self) -> dict[tuple[str, ...], float]:
        """Return the GPU-seconds that ranks caused, by counters; none if these are not read."""
        if self._ranks > MOST_COUNTED_RANKS:
            return {}
        return growth(
            self._history,
            self._series.of("rankskew_wait_caused_seconds_total"),
            ("rank", "stage"),
            self._parts,
            self._times,
            self._ranks * STAGES_OF_A_RANK,
            self._ranks,
        )

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
