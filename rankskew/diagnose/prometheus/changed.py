"""What changed: when the job as a whole became slower, and what began at about that time."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from exporter.live.wording import duration
from rank_probe.judge.verdict import Change
from rankskew.diagnose.late import late_events
from rankskew.diagnose.model import Event, Finding
from rankskew.diagnose.prometheus.moment import Moment
from rankskew.diagnose.situations import WhyOnNode, slower

# The judge's words on the job, from whichever exporter; a scope of SET are some ranks of a group.
CHANGES: Final = (
    "max by (scope, stage, figure) (label_replace("
    '{{__name__=~"rankskew_job_change_(ratio|gpus|since_timestamp_seconds)",{where}}}, '
    '"figure", "$1", "__name__", "rankskew_job_change_(.*)"))'
)
SET: Final = "set"
# The alert on what is told anyway.
SELF: Final = "RankskewJobSlower began."
# How far back it looks, and in how many points.
BACK_SECONDS: Final = 3 * 3600.0
POINTS: Final = 180
LEAST_STEP_SECONDS: Final = 15.0
# Fewer points before or after are no level.
LEAST_POINTS: Final = 5
# A rise by less is within what steps differ by from hour to hour.
RISE: Final = 1.1
# Steps may be slower by the late ranks, which are told anyway, and by this.
UNEXPLAINED: Final = 1.08
# What began so long before or after belongs to it.
NEAR_SECONDS: Final = 600.0


def whole_job(moment: Moment) -> tuple[list[Finding], list[Event]]:
    """Return how the whole job became slower, and all that began lately; raises Trouble.

    The judge says in which stage; what it cannot tell, because a change took hours or is older than
    its memory, shows in the length of the steps.
    """
    now = moment.prometheus.now
    events = [*late_events(moment.job), *_alerts(moment), *_started(moment)]

    changes = _judged(moment)
    why = _why(moment) if changes else {}

    def near(since: float) -> list[str]:
        those = [each for each in events if abs(each.since_seconds - since) <= NEAR_SECONDS]
        return [f"At about that time: {each.sentence}" for each in those if each.sentence != SELF]

    judged = [
        slower(
            change,
            sentence,
            why.get((change.peer_group, change.stage), ()),
            near(change.since_seconds),
        )
        for change, sentence in changes
    ]
    rise = _rise(moment, now)
    if rise is None:
        return judged, events
    since, before, after = rise
    told = Event(since, f"Steps take {after / before:.2f} times as long as before.")
    if judged or after / before < UNEXPLAINED * (moment.job.slowdown or 1.0):
        return judged, [*events, told]
    finding = Finding(
        "slower",
        f"The whole job has become slower: for {duration(since)}, a step has taken "
        f"{_ms(after)}, before {_ms(before)}.",
        since_seconds=since,
        facts=tuple(near(since)),
    )
    return [finding], [*events, told]


def _judged(moment: Moment) -> list[tuple[Change, str]]:
    """Return the changes that the judge of the job tells, each with a sentence if it needs one."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for each in moment.prometheus.query(CHANGES.format(where=moment.where)):
        found[each["scope"], each["stage"]][each["figure"]] = each.value
    ranks = moment.found.value("job:rankskew_ranks:sum") or 0.0
    now, changes = moment.prometheus.now, []
    for (scope, stage), figures in sorted(found.items()):
        gpus = figures.get("gpus", 0.0)
        change = Change(
            scope,
            stage,
            figures.get("ratio", 1.0),
            since_seconds=max(0.0, now - figures.get("since_timestamp_seconds", now)),
            step_ratio=ranks / (ranks - gpus) if gpus < ranks else 1.0,
            gpus=gpus,
        )
        longer = f"{change.ratio:.2f} times as long for {duration(change.since_seconds)}"
        of_some = f"Many ranks of the job became slower together: {stage} has taken {longer}."
        changes.append((change, of_some if scope == SET else ""))
    return changes


def _why(moment: Moment) -> Mapping[tuple[str, str], list[WhyOnNode]]:
    """Return the causes that exporters tell, by scope and stage of the change."""
    found: dict[tuple[str, str], list[WhyOnNode]] = defaultdict(list)
    for each in moment.prometheus.query(f"rankskew_job_change_cause_info{{{moment.where}}}"):
        node = moment.place(each["instance"]).node or each["instance"]
        why = WhyOnNode(node, (each["cause"], each["detail"]), each["sentence"])
        found[each["scope"], each["stage"]].append(why)
    return found


def _rise(moment: Moment, now: float) -> tuple[float, float, float] | None:
    """Return how long ago steps became longer, and how long they were before and are since."""
    step = max(LEAST_STEP_SECONDS, BACK_SECONDS / POINTS)
    found = moment.prometheus.query_range(
        f"job:rankskew_step_seconds:max{{{moment.where}}}", now - BACK_SECONDS, now, step
    )
    points = found[0].points if found else []
    place = split([value for _, value in points])
    if place is None:
        return None
    before = median(value for _, value in points[:place])
    after = median(value for _, value in points[place:])
    return (now - points[place][0], before, after) if after / before >= RISE else None


def split(values: Sequence[float]) -> int | None:
    """Return the place that splits *values* best into two levels, None if they are too few."""
    places = range(LEAST_POINTS, len(values) - LEAST_POINTS + 1)

    def misfit(place: int) -> float:
        return sum(
            abs(value - level)
            for part in (values[:place], values[place:])
            for level in [median(part)]
            for value in part
        )

    return min(places, key=misfit, default=None)


def _alerts(moment: Moment) -> list[Event]:
    """Return when each alert of the job began; ALERTS_FOR_STATE has that as its value."""
    found = moment.prometheus.query(f'ALERTS_FOR_STATE{{alertname=~"Rankskew.*",{moment.where}}}')
    began: dict[str, float] = {}
    for sample in found:
        name = sample["alertname"]
        began[name] = min(sample.value, began.get(name, sample.value))
    now = moment.prometheus.now
    return [Event(max(0.0, now - at), f"{name} began.") for name, at in began.items()]


def _started(moment: Moment) -> list[Event]:
    age = moment.found.value("job:rankskew_run_seconds:max")
    return [] if age is None else [Event(age, "The job started, or restarted.")]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
