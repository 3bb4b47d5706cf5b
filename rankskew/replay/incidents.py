"""Incidents: consecutive verdicts on the same rank or peer group, with the same onset."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rank_probe.judge.verdict import WARMING_UP, Change, Late, Verdict
from rankskew.replay.judge import JudgedStretch

# Another kind of the same incident may have begun at the next mark.
SAME_ONSET_SECONDS: Final = 2.0

Word = TypeVar("Word", Late, Change)

Who = int | str


@dataclass(slots=True, eq=False)
class TraceIncident(Generic[Word]):
    """What verdicts *said* of *who* since it was *named*.

    *last* is the time of the last verdict that named it, *cleared* that of the first one that did
    not, None if it lasted until the end. Times are in scaled seconds of the run.
    """

    who: Who
    onset: float
    named: float
    last: float = 0.0
    cleared: float | None = None
    said: list[Word] = field(default_factory=list)


Words = Callable[[Verdict], dict[Who, Word]]


def late_ranks(verdict: Verdict) -> dict[Who, Late]:
    """Return the late ranks in *verdict*."""
    return {late.rank: late for late in verdict.late}


def changes(verdict: Verdict) -> dict[Who, Change]:
    """Return the peer groups that became slower, according to *verdict*."""
    return {change.peer_group: change for change in verdict.changes}


def incidents(judged: Sequence[JudgedStretch], words: Words[Word]) -> list[TraceIncident[Word]]:
    """Return the incidents that *words* finds in the verdicts, in the order of their naming.

    An incident that lasts until ranks come or go continues if it is still there at the beginning
    of the next stretch.
    """
    found: list[TraceIncident[Word]] = []
    standing: dict[Who, TraceIncident[Word]] = {}
    for one in judged:
        of_stretch = _of_stretch(one, words, standing)
        found += [incident for incident in of_stretch if incident not in found]
        if any(verdict.reason != WARMING_UP for _, verdict in one.verdicts):
            for incident in standing.values():
                incident.cleared = incident.last
            standing = {}
        _end_precisely(one, of_stretch)
        standing |= {each.who: each for each in of_stretch if each.cleared is None}
    return found


def _of_stretch(
    one: JudgedStretch, words: Words[Word], before: dict[Who, TraceIncident[Word]]
) -> list[TraceIncident[Word]]:
    """Return the incidents of one stretch; those that continue from *before* are removed there."""
    found: list[TraceIncident[Word]] = []
    # With the onset that this stretch's judge gives.
    latest: dict[Who, tuple[float, TraceIncident[Word]]] = {}
    for at, verdict in one.verdicts:
        now = words(verdict)
        for who, word in now.items():
            onset = at - word.since_seconds
            known = latest.get(who)
            if known is None or abs(known[0] - onset) > SAME_ONSET_SECONDS:
                if known is not None:
                    _clear(known[1], at)
                latest[who] = onset, _begin(one, at, who, onset, before)
                found.append(latest[who][1])
            incident = latest[who][1]
            incident.last, incident.cleared = at, None
            incident.said.append(word)
        for who in latest.keys() - now.keys():
            _clear(latest[who][1], at)
    return found


def _end_precisely(one: JudgedStretch, found: Sequence[TraceIncident[Word]]) -> None:
    """Clear each of *found* when the judge saw later that it had ended, if it did.

    Where a rank is compared with its own past, it is named for some more samples.
    """
    for incident in found:
        for each in one.ended:
            is_same = abs(each.onset - incident.onset) <= SAME_ONSET_SECONDS
            if (each.rank, is_same) == (incident.who, True) and incident.cleared is not None:
                incident.cleared = min(each.end, incident.cleared)


def _clear(incident: TraceIncident[Word], at: float) -> None:
    if incident.cleared is None:
        incident.cleared = at


def _begin(
    one: JudgedStretch, at: float, who: Who, onset: float, before: dict[Who, TraceIncident[Word]]
) -> TraceIncident[Word]:
    if onset > one.warm + SAME_ONSET_SECONDS:
        return TraceIncident(who, onset, at)
    stood = before.pop(who, None)
    return stood or TraceIncident(who, one.stretch.begin, at)
