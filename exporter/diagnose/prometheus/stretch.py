"""The report on a job over a stretch of time: who was late in it, the worst first."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from exporter.advice import situations
from exporter.client.access import ANYONE, Access
from exporter.client.prometheus import Prometheus, Series, selector
from exporter.diagnose.advise import advised
from exporter.diagnose.loss import loss
from exporter.diagnose.model import CannotTell, Finding, Part, Report
from exporter.diagnose.prometheus.changed import whole_job
from exporter.diagnose.prometheus.moment import Moment, look
from exporter.diagnose.prometheus.read import all_findings, one_job
from exporter.diagnose.situations import unjudged
from exporter.live.sentences import duration
from exporter.live.states import FINISHED, HEALTHY, NO_PROBE, NOT_JUDGEABLE, STARTING
from exporter.top.from_prometheus import ask
from exporter.top.model import MOST_JOBS, STATE_WORDS, STATES

# Points of each range, and the least time between them.
POINTS: Final = 240
LEAST_STEP_SECONDS: Final = 15.0
# Moments that are looked at in full, each with a handful of queries.
MOST_MOMENTS: Final = 6
# While a job is in one of these, nothing can be told of its ranks.
QUIET: Final = (STARTING, NOT_JUDGEABLE, FINISHED, NO_PROBE)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The series of a job in the *seconds* before *end*, a Unix time, every *step* seconds."""

    prometheus: Prometheus
    where: str
    end: float
    seconds: float
    step: float

    def ask(self, name: str) -> list[Series]:
        """Return all series of that *name*; raises Trouble."""
        return self.prometheus.query_range(
            f"{name}{{{self.where}}}", self.end - self.seconds, self.end, self.step
        )


def read_stretch(
    url: str,
    cluster: str | None,
    job_id: str | None,
    seconds: float,
    access: Access = ANYONE,
) -> Report:
    """Return the report on the last *seconds*; raises Trouble and CannotTell."""
    prometheus = Prometheus(url, access=access)
    step = max(LEAST_STEP_SECONDS, seconds / POINTS)
    where = selector(cluster=cluster, job_id=job_id)
    stretch = Stretch(prometheus, where, _now(prometheus), seconds, step)
    states = [series for series in stretch.ask("job:rankskew_state:info") if series.points]
    cluster, job_id = _which(url, job_id, states, seconds)
    stretch = replace(stretch, where=selector(cluster=cluster, job_id=job_id))
    return _report(stretch, cluster, job_id, states)


def _now(prometheus: Prometheus) -> float:
    prometheus.query("vector(1)")
    return prometheus.now


def _which(
    url: str, job_id: str | None, states: Sequence[Series], seconds: float
) -> tuple[str, str]:
    """Return cluster and name of the only job that had *states*; raises CannotTell."""
    jobs = sorted({(series["cluster"], series["job_id"]) for series in states})
    if len(jobs) == 1:
        return jobs[0]
    if not jobs:
        what = "any job" if job_id is None else f"a job {job_id!r}"
        raise CannotTell(f"{url} has recorded nothing of {what} in the last {duration(seconds)}.")
    names = ", ".join(job for _, job in jobs[:MOST_JOBS])
    more = f" and {len(jobs) - MOST_JOBS} more" if len(jobs) > MOST_JOBS else ""
    raise CannotTell(f"There are {len(jobs)} jobs; name one with --job: {names}{more}.")


def _report(stretch: Stretch, cluster: str, job_id: str, states: Sequence[Series]) -> Report:
    lost = _lost_by_rank(stretch)
    times = _moments(stretch, lost, states)
    findings: list[Finding] = []
    for at in times:
        findings += _at(_moment(stretch, cluster, job_id, at), stretch, findings)
    findings = [_over_time(each, lost, stretch) for each in _telling(findings, states)]
    findings.sort(key=lambda each: -(each.gpus_lost or 0.0))
    moment = _moment(stretch, cluster, job_id, times[0])
    slower, events = whole_job(moment)
    shift = stretch.end - times[0]
    told = [replace(event, since_seconds=event.since_seconds + shift) for event in events]
    if slower is not None:
        findings.append(slower)
    return Report(
        source=stretch.prometheus.url,
        job_id=job_id,
        cluster=cluster,
        state=_state(states),
        sentence=_sentence(states, stretch),
        at_seconds=stretch.end,
        covers_seconds=stretch.seconds,
        world_size=moment.job.world_size,
        loss=_loss(stretch),
        gpu_hour_price=moment.value("job:rankskew_gpu_hour_price:value"),
        findings=tuple(advised(each, job_id) for each in findings),
        events=tuple(sorted(told, key=lambda event: event.since_seconds)),
        unjudged=tuple(unjudged(moment.known())),
    )


# ---- What was when -----------------------------------------------------------------------------


def _lost_by_rank(stretch: Stretch) -> dict[int, list[tuple[float, float]]]:
    """Return when each rank was late, and how many GPUs it cost then."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for series in stretch.ask("rank:rankskew_gpus_lost:sum"):
        if series["rank"].isdecimal():
            found[int(series["rank"])] += series.points
    return found


def _moments(
    stretch: Stretch, lost: Mapping[int, Sequence[tuple[float, float]]], states: Sequence[Series]
) -> list[float]:
    """Return the last moments of the costliest ranks and of each state, the latest first.

    Also the last at which anything is recorded of the job.
    """
    last = max(at for series in states for at, _ in series.points)
    costliest = sorted(lost, key=lambda rank: -sum(gpus for _, gpus in lost[rank]))
    times = [max(at for at, _ in lost[rank]) for rank in costliest[:MOST_MOMENTS]]
    times += [max(at for at, _ in series.points) for series in states if series["state"] != HEALTHY]
    return [last, *sorted({at for at in times if at != last}, reverse=True)[:MOST_MOMENTS]]


def _moment(stretch: Stretch, cluster: str, job_id: str, at: float) -> Moment:
    prometheus = stretch.prometheus.as_of(at)
    return look(prometheus, one_job(ask(prometheus, cluster, job_id), at))


def _at(moment: Moment, stretch: Stretch, known: Sequence[Finding]) -> list[Finding]:
    """Return what was wrong at that *moment*, and is not *known* of a later time."""
    found, _ = all_findings(moment, moment.known())
    later = stretch.end - moment.prometheus.now
    same = {(each.what, each.ranks) for each in known}
    ranks = {rank for each in known if each.kind is not None for rank in each.ranks}
    return [
        replace(
            each,
            since_seconds=None if each.since_seconds is None else each.since_seconds + later,
            until_seconds=later if later > 2 * stretch.step else None,
        )
        for each in found
        if (each.what, each.ranks) not in same
        and not (each.kind is not None and each.ranks and set(each.ranks) <= ranks)
    ]


def _over_time(
    finding: Finding, lost: Mapping[int, Sequence[tuple[float, float]]], stretch: Stretch
) -> Finding:
    """Return a finding about late ranks with what they cost over the whole stretch."""
    points = [point for rank in finding.ranks for point in lost.get(rank, ())]
    if finding.kind is None or not points:
        return finding
    whole = stretch.seconds / stretch.step
    while_late = len({at for at, _ in points}) * stretch.step
    seconds = min(while_late, stretch.seconds)
    said = f"Late for {duration(seconds)} of the {duration(stretch.seconds)}."
    mean = sum(gpus for _, gpus in points) / max(whole, 1.0)
    return replace(finding, gpus_lost=mean, facts=(said, *finding.facts))


def _telling(findings: Sequence[Finding], states: Sequence[Series]) -> list[Finding]:
    """Return *findings* without those that only say why nothing could be told for a while."""
    if {series["state"] for series in states} <= set(QUIET):
        return list(findings)
    names = situations()
    return [each for each in findings if each.what not in names or names[each.what].found]


def _state(states: Sequence[Series]) -> str:
    """Return the most urgent state of the stretch; one that tells nothing only if it is alone."""
    seen = {series["state"] for series in states}
    return min(seen - set(QUIET) or seen, key=STATES.index)


def _sentence(states: Sequence[Series], stretch: Stretch) -> str:
    spans: dict[str, float] = defaultdict(float)
    for series in states:
        spans[series["state"]] += len(series.points) * stretch.step
    told = [
        f"{STATE_WORDS.get(state, state).lower()} for {duration(min(seconds, stretch.seconds))}"
        for state, seconds in sorted(spans.items(), key=lambda each: -each[1])
        if seconds
    ]
    return f"It was {', '.join(told)}."


# ---- The loss ----------------------------------------------------------------------------------


def _loss(stretch: Stretch) -> Part | None:
    """Return the mean loss of the stretch, over the time in which it is known."""
    by_kind = stretch.ask("job_kind:rankskew_gpus_lost:sum")
    times = {at for series in by_kind for at, _ in series.points}
    if not times:
        return None
    kinds: dict[str, float] = defaultdict(float)
    for series in by_kind:
        kinds[series["kind"]] += sum(gpus for _, gpus in series.points) / len(times)
    late: dict[int, dict[str, float]] = defaultdict(dict)
    for series in stretch.ask("rank_stage:rankskew_gpus_lost:sum"):
        if series["rank"].isdecimal() and series.points:
            stages = late[int(series["rank"])]
            gpus = sum(value for _, value in series.points) / len(times)
            stages[series["stage"]] = stages.get(series["stage"], 0.0) + gpus
    return loss(kinds, late)
