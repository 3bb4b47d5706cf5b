"""The report on a job over a stretch of time: who was late in it, the worst first."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from exporter.live.states import FINISHED, HEALTHY, NO_PROBE, NOT_JUDGEABLE, STARTING
from exporter.live.wording import duration
from rankskew.client.access import ANYONE, Access
from rankskew.client.prometheus import Prometheus, Series, selector
from rankskew.diagnose.advice import situations
from rankskew.diagnose.loss import loss
from rankskew.diagnose.model import CannotTell, Finding, Part, Report, ordered
from rankskew.diagnose.prometheus.read import report_at
from rankskew.top.model import STATE_WORDS, STATES, several_jobs

# Points of each range, and the least time between them.
POINTS: Final = 240
LEAST_STEP_SECONDS: Final = 15.0
# Moments that are looked at in full, each with a handful of queries.
MOST_MOMENTS: Final = 6
# While a job is in one of these, nothing can be told of its ranks.
QUIET: Final = (STARTING, NOT_JUDGEABLE, FINISHED, NO_PROBE)

# When each rank was late, and how many GPUs it cost then.
Late = Mapping[int, Sequence[tuple[float, float]]]


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
    url: str, cluster: str | None, job_id: str | None, seconds: float, access: Access = ANYONE
) -> Report:
    """Return the report on the last *seconds*; raises Trouble and CannotTell."""
    prometheus = Prometheus(url, access=access)
    prometheus.query("vector(1)")  # It tells the time.
    where = selector(cluster=cluster, job_id=job_id)
    step = max(LEAST_STEP_SECONDS, seconds / POINTS)
    stretch = Stretch(prometheus, where, prometheus.now, seconds, step)
    states = [series for series in stretch.ask("job:rankskew_state:info") if series.points]
    jobs = sorted({(series["cluster"], series["job_id"]) for series in states})
    if not jobs:
        what = "any job" if job_id is None else f"a job {job_id!r}"
        raise CannotTell(f"{url} has recorded nothing of {what} in the last {duration(seconds)}.")
    if len(jobs) > 1:
        raise CannotTell(several_jobs([job for _, job in jobs]))
    cluster, job_id = jobs[0]
    stretch = replace(stretch, where=selector(cluster=cluster, job_id=job_id))
    late = _late(stretch)
    times = _moments(late, states)
    reports = [report_at(prometheus.as_of(at), cluster, job_id, at) for at in times]
    return _together(stretch, reports, late, states)


def _together(
    stretch: Stretch, reports: Sequence[Report], late: Late, states: Sequence[Series]
) -> Report:
    """Return the latest of *reports* with what each of them has found over the whole stretch."""
    latest = reports[0]
    shift = stretch.end - (latest.at_seconds or stretch.end)
    events = [replace(each, since_seconds=each.since_seconds + shift) for each in latest.events]
    findings: list[Finding] = []
    for each in reports:
        new = _new(each, stretch, findings)
        # The whole job is compared with itself at the end only.
        findings += [finding for finding in new if each is latest or finding.what != "slower"]
    told = [_over_time(each, late, stretch) for each in _telling(findings, states)]
    return replace(
        latest,
        state=_state(states),
        sentence=_sentence(states, stretch),
        at_seconds=stretch.end,
        covers_seconds=stretch.seconds,
        loss=_loss(stretch),
        slowdown=None,
        findings=tuple(ordered(told)),
        more=(),
        events=tuple(events),
    )


# ---- What was when -----------------------------------------------------------------------------


def _late(stretch: Stretch) -> Late:
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for series in stretch.ask("rank:rankskew_gpus_lost:sum"):
        if series["rank"].isdecimal():
            found[int(series["rank"])] += series.points
    return found


def _moments(late: Late, states: Sequence[Series]) -> list[float]:
    """Return the last moments of the costliest ranks and of each state, the latest first.

    Also the last at which anything is recorded of the job.
    """
    last = max(at for series in states for at, _ in series.points)
    costliest = sorted(late, key=lambda rank: -sum(gpus for _, gpus in late[rank]))
    times = [max(at for at, _ in late[rank]) for rank in costliest[:MOST_MOMENTS]]
    times += [max(at for at, _ in series.points) for series in states if series["state"] != HEALTHY]
    return [last, *sorted({at for at in times if at != last}, reverse=True)[:MOST_MOMENTS]]


def _new(one: Report, stretch: Stretch, known: Sequence[Finding]) -> list[Finding]:
    """Return what was wrong at the time of *one*, and is not *known* of a later time."""
    later = stretch.end - (one.at_seconds or stretch.end)
    same = {(each.what, each.ranks) for each in known}
    ranks = {rank for each in known if each.kind is not None for rank in each.ranks}
    return [
        replace(
            each,
            since_seconds=None if each.since_seconds is None else each.since_seconds + later,
            until_seconds=later if later > 2 * stretch.step else None,
        )
        for each in one.findings
        if (each.what, each.ranks) not in same
        and not (each.kind is not None and each.ranks and set(each.ranks) <= ranks)
    ]


def _over_time(finding: Finding, late: Late, stretch: Stretch) -> Finding:
    """Return a finding about late ranks with what they cost over the whole stretch."""
    points = [point for rank in finding.ranks for point in late.get(rank, ())]
    if finding.kind is None or not points:
        return finding
    while_late = min(len({at for at, _ in points}) * stretch.step, stretch.seconds)
    said = f"Late for {duration(while_late)} of the {duration(stretch.seconds)}."
    mean = sum(gpus for _, gpus in points) / max(stretch.seconds / stretch.step, 1.0)
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
    ]
    return f"It was {', '.join(told)}."


def _loss(stretch: Stretch) -> Part | None:
    """Return the mean loss of the stretch, over the time in which it is known."""
    by_kind = stretch.ask("job_kind:rankskew_gpus_lost:sum")
    times = {at for series in by_kind for at, _ in series.points}
    if not times:
        return None
    kinds: dict[str, float] = defaultdict(float)
    for series in by_kind:
        kinds[series["kind"]] += sum(gpus for _, gpus in series.points) / len(times)
    late: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for series in stretch.ask("rank_stage:rankskew_gpus_lost:sum"):
        if series["rank"].isdecimal() and series.points:
            gpus = sum(value for _, value in series.points) / len(times)
            late[int(series["rank"])][series["stage"]] += gpus
    return loss(kinds, late)
