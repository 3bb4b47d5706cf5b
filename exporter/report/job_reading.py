"""Reads what a Prometheus remembers of one job."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from exporter.client.prometheus import Prometheus
from exporter.errors import StartError
from exporter.report import losses
from exporter.report.confirmations import Said
from exporter.report.costs import Costs
from exporter.report.counters import growth, stretches
from exporter.report.history import Grid, History, Line, grid
from exporter.report.job import JobReport, Point
from exporter.report.job_series import JobSeries
from exporter.report.losses import Loss
from exporter.report.paging import sent
from exporter.report.rules import read_rules
from exporter.report.shadow import Judged, judged_of, read_incidents
from exporter.report.spans import Span, of_points
from exporter.report.times import show

# The search for the job takes one query.
SEARCH_POINTS: Final = 1_000
# The counters of larger jobs are not read: 16,384 ranks would be 100,000 series.
MOST_COUNTED_RANKS: Final = 256
STAGES_OF_A_RANK: Final = 6
# In these stages a rank does not train. Of a large job, ranks with one or two digits are read.
STANDSTILL: Final = ("checkpoint", "eval")
SOME_RANKS: Final = ',rank=~"..?"'
MOST_NAMES: Final = 20
# A process is as old when it has imported torch and is scraped for the first time.
UNSEEN_SECONDS: Final = 120.0


def read_job(
    prometheus: Prometheus,
    job_id: str,
    cluster: str | None,
    span: Span,
    said: Said,
    gap_seconds: float,
) -> JobReport:
    """Return what is known of the job during *span*.

    Raises Trouble if *prometheus* cannot tell, StartError if it has no such job or several.
    """
    interval = read_rules(prometheus).interval_seconds
    search = _Search(prometheus, job_id, span, interval)
    return _Reading(prometheus, search.found(cluster), search.times, span).report(said, gap_seconds)


class _Search:
    """Looks for the job anywhere in *span*; then *times* are those at which it is read."""

    def __init__(
        self, prometheus: Prometheus, job_id: str, span: Span, interval_seconds: float
    ) -> None:
        self._prometheus, self._job_id, self._span = prometheus, job_id, span
        self._interval = interval_seconds
        self.times = grid(*span, interval_seconds)

    def found(self, cluster: str | None) -> JobSeries:
        """Return the series of the job; StartError if there is none or there are several."""
        series = JobSeries(self._job_id, cluster)
        long = (self._span[1] - self._span[0]) / SEARCH_POINTS
        coarse = grid(*self._span, self._interval, long)
        step = coarse.step_seconds
        # Up to the last step, so that a job of the last minutes is found too.
        coarse = Grid(coarse.begin, coarse.end + step, step)
        counts = series.of("job:rankskew_ranks_beating:sum")
        lines = History(self._prometheus).lines(
            f"max_over_time({counts}[{step * 1000:.0f}ms]) > 0", coarse
        )
        if not lines:
            raise StartError(self._none(cluster))
        clusters = sorted({line["cluster"] for line in lines})
        if len(clusters) > 1:
            raise StartError(
                f"several clusters have a job {self._job_id!r}; give one: --cluster {clusters[0]!r}"
            )
        rough = [line.times[0] - step for line in lines], [line.times[-1] for line in lines]
        begin = max(min(rough[0]), self._span[0])
        end = min(max(rough[1]) + self._interval, self._span[1])
        self.times = grid(begin, end, self._interval)
        return JobSeries(self._job_id, clusters[0])

    def _none(self, cluster: str | None) -> str:
        begin, end = self._span
        where = f"from {show(begin)} to {show(end)} UTC"
        those = JobSeries(self._job_id, cluster).in_cluster("job:rankskew_ranks_beating:sum")
        seen = self._prometheus.query(
            f"group by (job_id) (last_over_time({those}[{end - begin:.0f}s]))", end
        )
        names = sorted({sample["job_id"] for sample in seen})
        if not names:
            there = "" if cluster is None else f" in cluster {cluster!r}"
            return (
                f"no job was seen{there} {where}; rankskew report --shadow says what was recorded"
            )
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return (
            f"there was no job {self._job_id!r} {where}; there were: "
            f"{', '.join(names[:MOST_NAMES])}{more}"
        )


class _Reading:
    """Reads *series* at *times*, of a job that was looked for during *span*."""

    def __init__(self, prometheus: Prometheus, series: JobSeries, times: Grid, span: Span) -> None:
        self._history, self._series, self._times = History(prometheus), series, times
        self._step = times.step_seconds
        self._alive = _spans(self._history.lines(series.alive, times), self._step)
        if not self._alive:
            raise StartError(f"job {series.job_id!r} was seen for less than {self._step:g} s")
        self._whole = self._alive[0][0], self._alive[-1][1]
        self._is_running = self._whole[1] >= span[1] - 4 * self._step
        self._gpus = self._lines("job:rankskew_world_size:max")
        self._ranks = round(max((v for line in self._gpus for v in line.values), default=0))
        self._kinds = self._lines("job_kind:rankskew_gpus_lost:sum")
        hung = _spans([line for line in self._kinds if line["kind"] == losses.HUNG], self._step)
        self._parts = stretches(self._whole, hung)

    def report(self, said: Said, gap_seconds: float) -> JobReport:
        """Return all that is known."""
        total = _points(self._lines("job:rankskew_gpus_lost:sum"))
        states = self._sums("job:rankskew_state:info", "state")
        prices = _points(self._lines("job:rankskew_gpu_hour_price:value"))
        gauge = sum(value for _, value in total) * self._step
        caused = self._caused()
        ages = self._lines("job:rankskew_run_seconds:max")
        return JobReport(
            job_id=self._series.job_id,
            cluster=self._series.cluster or "",
            times=self._times,
            alive=self._alive,
            is_running=self._is_running,
            unseen_seconds=max(0.0, _points(ages)[0][1] - UNSEEN_SECONDS) if ages else 0.0,
            world_size=self._ranks,
            gpus=_points(self._gpus),
            lost=total,
            losses=losses.worth(self._losses(caused)),
            is_counted=bool(caused),
            gauge_seconds=gauge,
            states={state: each for (state,), each in states.items() if state},
            standstill=self._standstill(),
            restarts=restarts(ages, self._step),
            price=sum(value for _, value in prices) / len(prices) if prices else None,
            incidents=self._incidents(said, gap_seconds),
        )

    def _lines(self, name: str) -> list[Line]:
        return self._history.lines(self._series.while_alive(self._series.of(name)), self._times)

    def _sums(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return the integral of the series *name* by *labels*."""
        return losses.integral(self._lines(name), self._step, *labels)

    def _losses(self, caused: dict[tuple[str, ...], float]) -> list[Loss]:
        """Return the parts of the loss."""
        kinds = losses.integral(self._kinds, self._step, "kind")
        late = self._history.lines(self._series.while_alive(self._series.late), self._times)
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

    def _incidents(self, said: Said, gap_seconds: float) -> list[Judged]:
        matchers = f",{self._series.labels}"
        found = read_incidents(self._history, self._times, matchers, gap_seconds)
        told = sent([firing for each in found for firing in each.firings])
        costs = Costs(self._history, self._times, matchers)
        return judged_of(found, told, costs, said, gap_seconds)


def _points(lines: Sequence[Line]) -> list[Point]:
    """Return the values of a series that a job has once."""
    return sorted(
        (at, value) for line in lines for at, value in zip(line.times, line.values, strict=True)
    )


def _spans(lines: Sequence[Line], step: float) -> list[Span]:
    return of_points((at for line in lines for at in line.times), step)


def restarts(ages: Sequence[Line], step: float) -> list[float]:
    """Return when the job's oldest process was younger than the last look at the job.

    The exporter's word may be as old as two steps.
    """
    points = _points(ages)
    return [
        at
        for (before, age_before), (at, age) in pairwise(points)
        if age < age_before and age <= at - before + 2 * step
    ]
