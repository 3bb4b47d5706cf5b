"""What a Prometheus remembers of one job: how long it ran, what it lost, what happened to it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from exporter.errors import StartError
from exporter.vocabulary.words import KINDS
from rankskew.client.prometheus import Prometheus, Series, selector
from rankskew.report.history import INTERVAL_SECONDS, Grid, Point, grid, read_past, spans_of
from rankskew.report.incidents import Incident, read_incidents
from rankskew.times import HOUR_SECONDS, Span, iso, seconds, to_minute
from rankskew.wording import few

# Age of a process that has imported torch when it is first scraped.
UNSEEN_SECONDS: Final = 120.0
# The search for the job takes one query.
SEARCH_POINTS: Final = 1_000
# Half a second of a whole fortnight is only a rounding error.
NOISE_HOURS: Final = 0.5 / HOUR_SECONDS
BEATING: Final = "job:rankskew_ranks_beating:sum"
CAUSE: Final = "rankskew_late_cause_info"
# By kind of loss, the series that says in which shares ranks are to blame for it.
SHARES: Final = {
    "hung": "rank_stage:rankskew_hang_suspect:group",
    "pause": "rankskew_job_pause_gpu_seconds",
}
SAME_RANK: Final = "on (cluster, job_id, rank, instance)"

# Hours by the values of some labels.
Hours = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of the loss."""

    kind: str
    """What was waited for: persistent (a late rank), pause (one long stop), rotating (ranks in
    turn, or not named yet), noise, group (heavier peer groups), common (communication), shared
    (what all ranks stop for) or hung.
    """
    gpu_hours: float
    """GPU-hours of this part."""
    rank: str | None = None
    """Number of the rank to blame, as text; null if there is none."""
    stage: str | None = None
    """Stage in which it was late or stuck; null if not known."""
    cause: str | None = None
    """Why it was late, as in docs/playbook, or unknown; null for other kinds."""
    dollars: float | None = None
    """US$ of this part; null without a price."""


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
    efficiency: float | None
    """Share of the judged GPU-hours that was not lost, 0 to 1; null if none was judged."""
    dollars_per_gpu_hour: float | None
    """US$ of a GPU-hour, a mean; null if no price is recorded."""
    dollars_lost: float | None
    """US$ of the lost GPU-hours; null without a price."""
    losses: Sequence[Loss]
    """Parts of the loss, the largest first; they add up to gpu_hours_lost."""
    state_seconds: Mapping[str, float]
    """For how many seconds the job was in each state of docs/concepts.md, by state."""
    restarts: Sequence[str]
    """When all of its processes were new, ISO 8601 in UTC."""
    incidents: Sequence[Incident]
    """Alerts that fired for it, in the order of their begin."""

    def dollars(self, gpu_hours: float) -> float | None:
        """Return what *gpu_hours* cost; None without a price."""
        price = self.dollars_per_gpu_hour
        return None if price is None else gpu_hours * price


# ---- Where it is -------------------------------------------------------------------------------


def read_job(prometheus: Prometheus, job_id: str, cluster: str | None, span: Span) -> JobReport:
    """Return what is known of the job during *span*.

    Raises Trouble if *prometheus* cannot tell, StartError if it has no such job or several.
    """
    coarse = grid(*span, SEARCH_POINTS)
    step = coarse.step_seconds
    counts = f"{BEATING}{{{selector(cluster=cluster, job_id=job_id)}}}"
    # Up to the last step, so that a job of the last minutes is found too.
    found = read_past(
        prometheus,
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
    end = min(max(each.points[-1][0] for each in found) + INTERVAL_SECONDS, span[1])
    times = grid(begin, end)
    return _Reading(prometheus, job_id, clusters[0], times).report(span[1])


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

    def __init__(self, prometheus: Prometheus, job_id: str, cluster: str, times: Grid) -> None:
        self._prometheus, self._times, self._step = prometheus, times, times.step_seconds
        self._job_id, self._cluster = job_id, cluster
        self._labels = selector(cluster=cluster, job_id=job_id)
        self._is_alive = f"{self._of(BEATING)} > 0"
        self._alive = spans_of(read_past(prometheus, self._is_alive, times), self._step)
        if not self._alive:
            raise StartError(f"job {job_id!r} was seen for less than {self._step:g} s")

    def _of(self, name: str) -> str:
        """Return the series *name* of the job."""
        return f"{name}{{{self._labels}}}"

    def _read(self, expression: str) -> list[Series]:
        """Return *expression* while a rank reports: an ended job is exposed for a while."""
        whole = f"({expression}) and on (cluster, job_id) ({self._is_alive})"
        return read_past(self._prometheus, whole, self._times)

    def _points(self, name: str) -> list[Point]:
        """Return the values of a series that a job has once."""
        return sorted(point for each in self._read(self._of(name)) for point in each.points)

    def _hours(self, expression: str, *labels: str) -> Hours:
        """Return the hours times the value of *expression*, by *labels*."""
        sums: dict[tuple[str, ...], float] = defaultdict(float)
        for each in self._read(expression):
            value = sum(value for _, value in each.points)
            sums[tuple(each[label] for label in labels)] += self._step / HOUR_SECONDS * value
        return sums

    def report(self, until: float) -> JobReport:
        """Return all that is known; *until* is the end of the period that is looked at."""
        begin, end = self._alive[0][0], self._alive[-1][1]
        hours = self._step / HOUR_SECONDS
        sizes = self._points("job:rankskew_world_size:max")
        known = {at for at, _ in self._points("job:rankskew_gpus_lost:sum")}
        judged = hours * sum(gpus for at, gpus in sizes if at in known)
        prices = [value for _, value in self._points("job:rankskew_gpu_hour_price:value")]
        price = sum(prices) / len(prices) if prices else None
        ages = self._points("job:rankskew_run_seconds:max")
        states = self._hours(self._of("job:rankskew_state:info"), "state")
        losses = sorted(self._losses(price), key=lambda loss: -loss.gpu_hours)
        lost = sum(part.gpu_hours for part in losses)
        return JobReport(
            job_id=self._job_id,
            cluster=self._cluster,
            begin=iso(begin),
            end=iso(end),
            unseen_seconds=max(0.0, ages[0][1] - UNSEEN_SECONDS) if ages else 0.0,
            is_running=end >= until - 4 * self._step,
            step_seconds=self._step,
            alive_seconds=seconds(self._alive),
            ranks=round(max((gpus for _, gpus in sizes), default=0)),
            gpu_hours=hours * sum(gpus for _, gpus in sizes),
            gpu_hours_judged=judged,
            gpu_hours_lost=lost,
            efficiency=max(0.0, 1 - lost / judged) if judged else None,
            dollars_per_gpu_hour=price,
            dollars_lost=None if price is None else lost * price,
            losses=losses,
            state_seconds={name: each * HOUR_SECONDS for (name,), each in states.items() if name},
            restarts=[iso(at) for at in restarts(ages, self._step)],
            incidents=read_incidents(self._prometheus, self._times, self._labels),
        )

    def _losses(self, price: float | None) -> Iterator[Loss]:
        """Yield the parts of the loss that are worth a word."""
        kinds = self._hours(self._of("job_kind:rankskew_gpus_lost:sum"), "kind")
        for kind in KINDS:
            hours = kinds.get((kind,), 0.0)
            parts = self._parts(kind, hours)
            rest = hours - sum(parts.values())
            for (rank, stage, cause), part in [*parts.items(), (("", "", ""), rest)]:
                if part >= NOISE_HOURS:
                    why = cause or "unknown" if kind == "persistent" else None
                    dollars = None if price is None else part * price
                    yield Loss(kind, part, rank or None, stage or None, why, dollars)

    def _parts(self, kind: str, hours: float) -> Hours:
        """Return who is known to blame for the *hours* of a *kind*, by rank, stage and cause."""
        where = ("rank", "stage", "cause")
        if kind == "persistent":
            lost, cause = self._of("rank_stage:rankskew_gpus_lost:sum"), self._of(CAUSE)
            # One cause, even if an old one lingers.
            one = f"topk by (cluster, job_id, rank, instance) (1, {cause})"
            named = f"{lost} * {SAME_RANK} group_left (cause) {one}"
            return self._hours(f"{named} or {lost} unless {SAME_RANK} {cause}", *where)
        if kind == "rotating":
            return self._hours(self._of("job_stage:rankskew_gpus_lost:sum"), *where)
        if kind not in SHARES or not hours:
            return {}
        shares = self._hours(self._of(SHARES[kind]), *where)
        total = sum(shares.values())
        return {who: hours * part / total for who, part in shares.items()}


def restarts(ages: Sequence[Point], step: float) -> list[float]:
    """Return the readings at which the job's oldest process had started since the last reading.

    The age that the exporter reports may be up to two steps old.
    """
    return [
        at
        for (before, age_before), (at, age) in pairwise(ages)
        if age < age_before and age <= at - before + 2 * step
    ]
