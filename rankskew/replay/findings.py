"""Turns the judge's verdicts on a run into findings: one per incident, from onset to end.

An incident is consecutive verdicts on the same rank or peer group, with the same onset.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from statistics import fmean
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from exporter.live.sentences import (
    LateView,
    change_sentence,
    late_sentence,
    pause_sentence,
    view_late,
)
from exporter.ranks.late_enough import late_enough
from exporter.vocabulary.thresholds import defaults
from rank_probe.judge.verdict import (
    DUTY,
    LOST_KINDS,
    MILD,
    NODE,
    PAUSES,
    PERSISTENT,
    UNSYNCED,
    WARMING_UP,
    Change,
    Late,
    Verdict,
)
from rankskew.diagnose.findings import LIMITS, loss_sentence, mild_sentence
from rankskew.replay.judge import JudgedStretch

# Findings of these kinds name ranks that others wait for.
NAMING: Final = (PERSISTENT, PAUSES, DUTY, NODE, MILD)
CHANGE, PAUSE = "change", "pause"
# A loss is reported after the time that the rules wait, or after half of a shorter run.
TOLD_AFTER_SECONDS: Final = 240.0
# Onsets this close are one incident: if its kind changes, the onset may move by a mark.
SAME_ONSET_SECONDS: Final = 2.0
Severity = Literal["critical", "warning", "info"]
INFO: Final = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFinding:
    """A rank, node, peer group or job that was slow; ratio and gpus_lost are means."""

    kind: str
    """persistent, pauses, duty, node, mild, unsynced, change, or one of what GPUs are lost to."""
    sentence: str
    """What was slow, in a sentence."""
    severity: Severity = INFO
    """The worst severity that the shipped rules give to its cost."""
    rank: int | None = None
    """Its global rank; null for a node, a peer group or the job."""
    ranks: tuple[int, ...] = ()
    """All ranks that are named as late; empty for a peer group or the job."""
    slower_ranks: tuple[int, ...] = ()
    """Of a change: its ranks, at most 32, if not all of the group are slower."""
    peer_group: str | None = None
    """Its peer group; null if ranks of several are named, or for the job."""
    instance: str | None = None
    """Node of its ranks, as the trace names it; null for a peer group or the job."""
    stage: str | None = None
    """Stage that is slow; null if it has none, as for group and common."""
    ratio: float | None = None
    """Own time over peers' less 1; of a change how many times as long; null for the job."""
    onset_s: float
    """When it began, in scaled seconds since the run began."""
    named_s: float
    """When a verdict first named it, in scaled seconds since the run began."""
    cleared_s: float | None = None
    """When it ended, in scaled seconds since the run began; null if it lasted."""
    gpus_lost: float | None = None
    """GPUs that waited for it, a mean while it lasted; null if not known."""


def findings(judged: Sequence[JudgedStretch], instances: Mapping[int, str]) -> list[TraceFinding]:
    """Return the findings; *instances* [rank] names the rank's node.

    They are in the order of their onsets. Where no wait was measured, the findings on ranks come
    first, the largest lasting excess before the others.
    """
    alarms = list(_alarms(judged))
    size = max((len(one.stretch.ranks) for one in judged), default=0)
    late = incidents(judged, lambda verdict: {each.rank: each for each in verdict.late})
    slower = incidents(judged, lambda verdict: {each.peer_group: each for each in verdict.changes})
    found = [
        *(
            _finding(those, instances, size, _severity(those, alarms))
            for those in _together(late, instances)
        ),
        *(_change(incident) for incident in slower),
        *_pauses(judged, late),
        *(each for kind in LIMITS if kind != PAUSE for each in _of_the_job(kind, judged)),
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


# ---- Incidents -----------------------------------------------------------------------------------

Word = TypeVar("Word", Late, Change)

Who = int | str


@dataclass(slots=True, eq=False)
class TraceIncident(Generic[Word]):
    """What verdicts *said* of *who* since it was *named*.

    *last* is the time of the last verdict that named it, *cleared* that of the first one that did
    not, infinite if it lasted until the end. Times are in scaled seconds of the run.
    """

    who: Who
    onset: float
    named: float
    last: float = 0.0
    cleared: float = inf
    said: list[Word] = field(default_factory=list)

    def clear(self, at: float) -> None:
        """Note that a verdict does not name it."""
        self.cleared = min(at, self.cleared)


def incidents(
    judged: Sequence[JudgedStretch], words: Callable[[Verdict], Mapping[Who, Word]]
) -> list[TraceIncident[Word]]:
    """Return the incidents in the order of their naming; *words* are a verdict's, by whom.

    An incident that lasts until ranks come or go continues if it is still there at the beginning
    of the next stretch.
    """
    found: list[TraceIncident[Word]] = []
    standing: dict[Who, TraceIncident[Word]] = {}
    for one in judged:
        # With the onset that this stretch's judge gives.
        latest: dict[Who, tuple[float, TraceIncident[Word]]] = {}
        for at, verdict in one.verdicts:
            now = words(verdict)
            for who, word in now.items():
                onset = at - word.since_seconds
                known = latest.get(who)
                if known is None or abs(known[0] - onset) > SAME_ONSET_SECONDS:
                    if known is not None:
                        known[1].clear(at)
                    is_from_begin = onset <= one.warm + SAME_ONSET_SECONDS
                    incident = standing.pop(who, None) if is_from_begin else None
                    if incident is None:
                        begin = one.stretch.begin if is_from_begin else onset
                        incident = TraceIncident(who, begin, at)
                        found.append(incident)
                    latest[who] = onset, incident
                incident = latest[who][1]
                incident.last, incident.cleared = at, inf
                incident.said.append(word)
            for who in latest.keys() - now.keys():
                latest[who][1].clear(at)
        if any(verdict.reason != WARMING_UP for _, verdict in one.verdicts):
            for incident in standing.values():
                incident.clear(incident.last)
            standing = {}
        # A rank that is compared with its own past is named for some samples after its end.
        for ended, incident in product(one.ended, found):
            is_same = abs(ended.onset - incident.onset) <= SAME_ONSET_SECONDS
            if is_same and ended.rank == incident.who and incident.cleared < inf:
                incident.clear(ended.end)
        standing |= {who: each for who, (_, each) in latest.items() if each.cleared == inf}
    return found


# ---- Ranks and nodes ---------------------------------------------------------------------------


def _threshold(name: str) -> float:
    return defaults()[name].value


def _alarms(judged: Sequence[JudgedStretch]) -> Iterator[tuple[float, dict[int, float]]]:
    """Yield the ranks that an alert would name at a time, with the share of GPUs that all cost."""
    for one in judged:
        size = len(one.stretch.ranks)
        for at, verdict in one.verdicts:
            ranks = late_enough(verdict.late, size, _threshold)
            slow = (late for late in verdict.late if late.rank in ranks and late.kind != DUTY)
            yield at, dict.fromkeys(ranks, sum(late.gpus_lost for late in slow) / size)


def _severity(
    those: Sequence[TraceIncident[Late]], alarms: Sequence[tuple[float, Mapping[int, float]]]
) -> Severity:
    """Return the worst severity that the job had while an alert would have named any of *those*."""
    shares = [
        share
        for incident in those
        for at, named in alarms
        for rank, share in named.items()
        if rank == incident.who and incident.named <= at <= incident.last
    ]
    pages = _kind(those[0]) != DUTY and max(shares, default=0) >= _threshold("gpus_lost_page_ratio")
    return "critical" if pages else "warning" if shares else INFO


def _together(
    found: Sequence[TraceIncident[Late]], instances: Mapping[int, str]
) -> list[list[TraceIncident[Late]]]:
    """Return each incident alone, but simultaneous ones of a slow node together."""
    groups: list[list[TraceIncident[Late]]] = []
    for incident in found:
        for those in groups:
            nodes = {instances[each.said[0].rank] for each in (those[0], incident)}
            is_node = _kind(those[0]) == _kind(incident) == NODE and len(nodes) == 1
            if is_node and any(
                each.onset <= incident.cleared and incident.onset <= each.cleared for each in those
            ):
                those.append(incident)
                break
        else:
            groups.append([incident])
    return groups


def _kind(incident: TraceIncident[Late]) -> str:
    """Return the most frequent kind; mild only if there is no other."""
    kinds = Counter(late.kind for late in incident.said)
    return max(kinds, key=lambda kind: (kind != MILD, kinds[kind]))


def _finding(
    those: Sequence[TraceIncident[Late]],
    instances: Mapping[int, str],
    size: int,
    severity: Severity,
) -> TraceFinding:
    """Return one finding for *those* incidents: of one rank, or of the ranks of one node."""
    late = [_as_one(incident) for incident in those]
    kind, first = late[0].kind, late[0]
    is_little = kind in (MILD, UNSYNCED)
    groups = {each.peer_group for each in late}
    return TraceFinding(
        kind=kind,
        sentence=mild_sentence(first) if is_little else late_sentence(late, size),
        severity=severity,
        rank=None if kind == NODE else first.rank,
        ranks=tuple(sorted({each.rank for each in late})),
        peer_group=first.peer_group if len(groups) == 1 else None,
        instance=instances[first.rank],
        stage=Counter(each.stage for each in late).most_common(1)[0][0],
        ratio=fmean(each.ratio for each in late),
        onset_s=min(incident.onset for incident in those),
        named_s=min(incident.named for incident in those),
        cleared_s=_end(those),
        gpus_lost=None if kind == UNSYNCED else sum(each.gpus_lost for each in late),
    )


def _end(those: Sequence[TraceIncident[Word]]) -> float | None:
    cleared = max(incident.cleared for incident in those)
    return cleared if cleared < inf else None


def _as_one(incident: TraceIncident[Late]) -> LateView:
    """Return the last view of a rank, with the means and modes over the whole incident."""
    said = incident.said
    return replace(
        view_late(said[-1], 0.0, [said[-1].rank]),
        kind=_kind(incident),
        stage=Counter(late.stage for late in said).most_common(1)[0][0],
        ratio=fmean(late.ratio for late in said),
        gpus_lost=fmean(late.gpus_lost for late in said),
    )


def _change(incident: TraceIncident[Change]) -> TraceFinding:
    change = replace(incident.said[-1], ratio=fmean(each.ratio for each in incident.said))
    return TraceFinding(
        kind=CHANGE,
        sentence=change_sentence(change),
        slower_ranks=change.slower_ranks,
        peer_group=change.peer_group,
        stage=change.stage,
        ratio=change.ratio,
        onset_s=incident.onset,
        named_s=incident.named,
        cleared_s=_end([incident]),
    )


def _pauses(
    judged: Sequence[JudgedStretch], late: Sequence[TraceIncident[Late]]
) -> Iterator[TraceFinding]:
    """Yield each long stop once, except those of a rank that is *late* at that time."""
    for one in judged:
        told = set[tuple[int | None, int]]()
        for at, verdict in one.verdicts:
            for pause in verdict.pauses:
                end, who = at - pause.since_seconds, (pause.rank, pause.step)
                is_late = any(
                    incident.who == pause.rank and incident.onset <= end <= incident.last
                    for incident in late
                )
                if who in told or is_late:
                    continue
                told.add(who)
                yield TraceFinding(
                    kind=PAUSE,
                    sentence=pause_sentence(pause),
                    rank=pause.rank,
                    stage=pause.stage,
                    onset_s=end - pause.seconds,
                    named_s=at,
                    cleared_s=end,
                    gpus_lost=pause.gpu_seconds / pause.seconds,
                )


# ---- The job -----------------------------------------------------------------------------------


def apart(
    lost: Mapping[str, float], found: Sequence[TraceFinding], judged: Sequence[JudgedStretch]
) -> dict[str, float]:
    """Return what is *lost* by kind, in GPUs, with the kinds that only the judge separates."""
    seconds = sum(one.stretch.end - one.stretch.begin for one in judged)
    paused = {True: 0.0, False: 0.0}  # Those of all ranks, and of one.
    for each in found:
        if each.kind == PAUSE:
            lasted = (each.cleared_s or 0.0) - each.onset_s
            paused[each.rank is None] += (each.gpus_lost or 0.0) * lasted / seconds
    pause = min(paused[False], lost["rotating"])
    noise = min(_mean("noise", judged), lost["rotating"] - pause)
    rotating = lost["rotating"] - pause - noise
    known = {**lost, "pause": pause + paused[True], "rotating": rotating, "noise": noise}
    known["shared"] = _mean("shared", judged)
    return {kind: known[kind] for kind in LOST_KINDS if kind in known}


def _mean(kind: str, judged: Sequence[JudgedStretch]) -> float:
    those = list(_losses(kind, judged))
    whole = sum(each.gpus * (each.at - each.begin) for each in those)
    return whole / sum(each.at - each.begin for each in those) if those else 0.0


class _Lost(NamedTuple):
    """The loss of one kind in one verdict, as a mean since *begin*."""

    begin: float
    at: float
    gpus: float
    ranks: int
    stages: Mapping[str, float]


def _of_the_job(kind: str, judged: Sequence[JudgedStretch]) -> Iterator[TraceFinding]:
    """Yield a finding if the job lost more than the threshold to *kind* for long enough."""
    lost = list(_losses(kind, judged))
    begin, end = _worst(lost, _threshold(LIMITS[kind]))
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
    stage = stages.most_common(1)[0][0] if stages else None
    gpus = fmean(each.gpus for each in those)
    yield TraceFinding(
        kind=kind,
        sentence=loss_sentence(kind, gpus, those[0].ranks, stage),
        stage=stage,
        onset_s=onset,
        named_s=onset + needed,
        cleared_s=lost[end].at if end < len(lost) else None,
        gpus_lost=gpus,
    )


def _losses(kind: str, judged: Sequence[JudgedStretch]) -> Iterator[_Lost]:
    for one in judged:
        begin = one.stretch.begin
        for at, verdict in one.verdicts:
            if verdict.reason is None:
                ranks = sum(verdict.ranks.values())
                yield _Lost(
                    begin, at, verdict.gpus_lost.get(kind, 0.0), ranks, _stages(kind, verdict)
                )
                begin = at
            elif verdict.step_seconds is not None:  # Not while warming up.
                begin = at


def _stages(kind: str, verdict: Verdict) -> Mapping[str, float]:
    """Return where a loss of that *kind* arises, as far as it is known."""
    if kind == "shared":
        return verdict.stall_ratios
    return verdict.rotating if kind == "rotating" else {}


def _worst(lost: Sequence[_Lost], limit: float) -> tuple[int, int]:
    """Return the range with the largest total excess over *limit* (Kadane); (0, 0): none."""
    best, where = 0.0, (0, 0)
    total, begin = 0.0, 0
    for number, each in enumerate(lost, 1):
        if total <= 0:
            total, begin = 0.0, number - 1
        total += (each.gpus / each.ranks - limit) * (each.at - each.begin)
        if total > best:
            best, where = total, (begin, number)
    return where
