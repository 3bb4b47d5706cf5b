"""Turns the judge's verdicts on a run into findings: one per incident, from onset to end."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from exporter.ranks.late_enough import late_enough
from rank_probe.judge.verdict import (
    DUTY,
    MILD,
    NODE,
    PAUSES,
    PERSISTENT,
    UNSYNCED,
    WARMING_UP,
    Change,
    Late,
)
from rankskew.replay.incidents import TraceIncident, changes, incidents, late_ranks
from rankskew.replay.judge import JudgedStretch

# Findings of these kinds name ranks that others wait for.
NAMING: Final = (PERSISTENT, PAUSES, NODE, MILD)
CHANGE: Final = "change"
# Kinds of loss without a culprit, and the rules' threshold for reporting each.
OF_THE_JOB: Final = {
    "rotating": "rotating_lost_ratio",
    "group": "group_lost_ratio",
    "common": "wait_share",
}
# A loss is reported after the time that the rules wait, or after half of a shorter run.
TOLD_AFTER_SECONDS: Final = 240.0
INFO: Final = "info"

# Returns a threshold of the rules by its name.
Threshold = Callable[[str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFinding:
    """A rank, node, group or job that was slow; times are scaled seconds of the run.

    *kind* is one of LATE_KINDS, CHANGE or one of OF_THE_JOB. *severity* is the worst that the
    shipped rules give it: critical, warning or info. *rank* is None for a node or the job; *ranks*
    are all named ranks, *slower_ranks* those of a change if not all of the group are slower.
    *ratio* is the mean of the judge's ratios: a rank's own time over its peers', minus 1; for a
    change, how many times as long *stage* takes; of a rank that *has_risen*, over its own time
    before. *gpus_lost* is a mean too, None if unknown.
    *cleared_s* is None if it lasted until the end. *every_steps* and *pause_seconds* are those of a
    rank that pauses.
    """

    kind: str
    severity: str = INFO
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    slower_ranks: tuple[int, ...] = ()
    peer_group: str | None = None
    instance: str | None = None
    stage: str | None = None
    ratio: float | None = None
    onset_s: float
    named_s: float
    cleared_s: float | None = None
    gpus_lost: float | None = None
    has_risen: bool = False
    every_steps: int = 0
    pause_seconds: float = 0.0


def findings(
    judged: Sequence[JudgedStretch], instances: Mapping[int, str], threshold: Threshold
) -> list[TraceFinding]:
    """Return the findings; *instances* [rank] are its node's.

    They are in the order of their onsets, but where no wait was measured, those of the ranks come
    first, and of these the largest lasting excess.
    """
    alarms = list(_alarms(judged, threshold))
    found = [
        *(
            _finding(those, instances, _severity(those, alarms, threshold))
            for those in _together(incidents(judged, late_ranks), instances)
        ),
        *(_change(incident) for incident in incidents(judged, changes)),
        *(each for kind in OF_THE_JOB for each in _of_the_job(kind, judged, threshold)),
    ]
    until = max((one.stretch.end for one in judged), default=0.0)
    return sorted(
        found,
        key=lambda one: (-_lasting(one, until), one.onset_s, one.named_s, one.kind, one.ranks),
    )


def _lasting(one: TraceFinding, until: float) -> float:
    """Return the excess of a rank that is not known to be waited for, in seconds."""
    if one.kind != UNSYNCED or one.ratio is None:
        return 0.0
    return one.ratio * ((until if one.cleared_s is None else one.cleared_s) - one.onset_s)


def not_judgeable(judged: Sequence[JudgedStretch]) -> list[str]:
    """Return the reasons in at least half of the verdicts after the warm-up."""
    reasons = [verdict.reason for one in judged for _, verdict in one.verdicts]
    warm = [reason for reason in reasons if reason != WARMING_UP]
    stood = Counter(reason for reason in warm if reason is not None)
    often = sorted(reason for reason, times in stood.items() if times * 2 >= len(warm))
    return often if warm else [WARMING_UP]


# ---- Ranks and nodes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Alarm:
    """The ranks that an alert would name at a time, and the *share* of the GPUs that they cost.

    It is what all of them cost together, because the severity is that of the job.
    """

    at: float
    ranks: frozenset[int]
    share: float


def _alarms(judged: Sequence[JudgedStretch], threshold: Threshold) -> Iterator[_Alarm]:
    for one in judged:
        size = len(one.stretch.ranks)
        for at, verdict in one.verdicts:
            ranks = late_enough(verdict.late, size, threshold)
            slow = (late for late in verdict.late if late.rank in ranks and late.kind != DUTY)
            gpus = sum(late.gpus_lost for late in slow)
            yield _Alarm(at, ranks, gpus / size)


def _severity(
    those: Sequence[TraceIncident[Late]], alarms: Sequence[_Alarm], threshold: Threshold
) -> str:
    """Return the worst severity that the job had while an alert would have named any of *those*."""
    shares = [
        alarm.share
        for incident in those
        for alarm in alarms
        if incident.named <= alarm.at <= incident.last and incident.who in alarm.ranks
    ]
    if not shares:
        return INFO
    is_duty = _kind(those[0]) == DUTY
    return (
        "critical"
        if not is_duty and max(shares) >= threshold("gpus_lost_page_ratio")
        else "warning"
    )


def _together(
    found: Sequence[TraceIncident[Late]], instances: Mapping[int, str]
) -> Iterator[list[TraceIncident[Late]]]:
    """Yield each incident alone, but those of a slow node together."""
    of_nodes: list[list[TraceIncident[Late]]] = []
    for incident in found:
        if _kind(incident) != NODE:
            yield [incident]
            continue
        node = instances[incident.said[0].rank]
        for those in of_nodes:
            if instances[those[0].said[0].rank] == node and _overlap(those, incident):
                those.append(incident)
                break
        else:
            of_nodes.append([incident])
    yield from of_nodes


def _kind(incident: TraceIncident[Late]) -> str:
    """Return the most frequent kind; mild only if there is no other."""
    kinds = Counter(late.kind for late in incident.said)
    more = Counter({kind: times for kind, times in kinds.items() if kind != MILD})
    return (more or kinds).most_common(1)[0][0]


def _overlap(those: Sequence[TraceIncident[Late]], other: TraceIncident[Late]) -> bool:
    return any(
        (one.cleared is None or other.onset <= one.cleared)
        and (other.cleared is None or one.onset <= other.cleared)
        for one in those
    )


def _finding(
    those: Sequence[TraceIncident[Late]], instances: Mapping[int, str], severity: str
) -> TraceFinding:
    """Return one finding for *those* incidents: of one rank, or of the ranks of one node."""
    said = [late for incident in those for late in incident.said]
    kind, first = _kind(those[0]), said[0]
    gpus = sum(fmean(late.gpus_lost for late in incident.said) for incident in those)
    cleared = [incident.cleared for incident in those if incident.cleared is not None]
    groups = {late.peer_group for late in said}
    return TraceFinding(
        kind=kind,
        severity=severity,
        rank=None if kind == NODE else first.rank,
        ranks=tuple(sorted({late.rank for late in said})),
        peer_group=first.peer_group if len(groups) == 1 else None,
        instance=instances[first.rank],
        stage=Counter(late.stage for late in said).most_common(1)[0][0],
        ratio=fmean(late.ratio for late in said),
        onset_s=min(incident.onset for incident in those),
        named_s=min(incident.named for incident in those),
        cleared_s=max(cleared) if len(cleared) == len(those) else None,
        gpus_lost=None if kind == UNSYNCED else gpus,
        has_risen=said[-1].has_risen,
        every_steps=said[-1].every_steps,
        pause_seconds=said[-1].pause_seconds,
    )


def _change(incident: TraceIncident[Change]) -> TraceFinding:
    said = incident.said
    return TraceFinding(
        kind=CHANGE,
        slower_ranks=said[-1].slower_ranks,
        peer_group=said[0].peer_group,
        stage=said[-1].stage,
        ratio=fmean(change.ratio for change in said),
        onset_s=incident.onset,
        named_s=incident.named,
        cleared_s=incident.cleared,
    )


# ---- The job -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lost:
    """The loss of one kind in one verdict, as a mean since *begin*."""

    begin: float
    at: float
    gpus: float
    share: float
    stages: Mapping[str, float]


def _of_the_job(
    kind: str, judged: Sequence[JudgedStretch], threshold: Threshold
) -> Iterator[TraceFinding]:
    """Yield a finding if the job lost more than the threshold to *kind* for long enough."""
    lost = list(_losses(kind, judged))
    begin, end = _worst(lost, threshold(OF_THE_JOB[kind]))
    those = lost[begin:end]
    if not those:
        return
    onset, last = those[0].begin, those[-1].at
    needed = min(TOLD_AFTER_SECONDS, sum(each.at - each.begin for each in lost) / 2)
    if last - onset < needed:
        return
    stages = Counter[str]()
    for each in those:
        stages.update(each.stages)
    yield TraceFinding(
        kind=kind,
        stage=stages.most_common(1)[0][0] if stages and kind == "rotating" else None,
        onset_s=onset,
        named_s=onset + needed,
        cleared_s=lost[end].at if end < len(lost) else None,
        gpus_lost=fmean(each.gpus for each in those),
    )


def _losses(kind: str, judged: Sequence[JudgedStretch]) -> Iterator[_Lost]:
    for one in judged:
        begin = one.stretch.begin
        for at, verdict in one.verdicts:
            if verdict.reason is None:
                gpus = verdict.gpus_lost[kind]
                share = gpus / sum(verdict.ranks.values())
                yield _Lost(begin, at, gpus, share, verdict.rotating)
                begin = at
            elif verdict.step_seconds is not None:  # Not while warming up.
                begin = at


def _worst(lost: Sequence[_Lost], limit: float) -> tuple[int, int]:
    """Return the range with the largest total excess over *limit* (Kadane); (0, 0): none."""
    best, where = 0.0, (0, 0)
    total, begin = 0.0, 0
    for number, each in enumerate(lost, 1):
        if total <= 0:
            total, begin = 0.0, number - 1
        total += (each.share - limit) * (each.at - each.begin)
        if total > best:
            best, where = total, (begin, number)
    return where
