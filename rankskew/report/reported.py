"""An incident as reports have it: with its cost, what was sent, and what people said of it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rankskew.client.names import NAME, of_addresses
from rankskew.client.prometheus import Series
from rankskew.report.confirmations import Confirmation, Confirmations
from rankskew.report.costs import Costs
from rankskew.report.document import MONEY
from rankskew.report.history import Grid, PastSeries
from rankskew.report.incidents import AlertIncident, Firing, fires, firings, incidents
from rankskew.report.paging import is_note, sent
from rankskew.report.times import (
    DAY_SECONDS,
    HOUR_SECONDS,
    NOT_KNOWN,
    gpu_hours,
    iso,
    length,
    money,
)

# An incident that began before the period is followed back, at most so far.
BACK_SECONDS: Final = 14 * DAY_SECONDS
PIECE_SECONDS: Final = DAY_SECONDS
PAGE: Final = "page"
# Of its cells as a row; those that begin with > are numbers.
NAMES: Final = (
    *("Incident", "Severity", "Alert", "Job", "Who", "Stage", "Cause"),
    *(">Lasted", ">GPU-hours", MONEY, "Sends", "Judged"),
)


@dataclass(frozen=True, slots=True)
class ReportedIncident:
    """One *incident*, what of its firings was *sent*, and the *confirmation* that counts.

    *gpu_hours* and *dollars* are what it cost, None if that is not known.
    """

    incident: AlertIncident
    sent: Sequence[Firing]
    confirmation: Confirmation | None
    gpu_hours: float | None
    dollars: float | None

    @property
    def verdict(self) -> str | None:
        """Return what people said of it."""
        return self.confirmation.verdict if self.confirmation else None

    @property
    def pages(self) -> bool:
        """Return whether it would have woken somebody."""
        return self.sends == PAGE

    @property
    def sends(self) -> str:
        """Return what would have been sent: a page, a note, or nothing."""
        if not any(firing.spans for firing in self.sent):
            return "explained by another"
        return "note" if all(map(is_note, self.incident.firings)) else PAGE

    def row(self) -> list[str]:
        """Return its cells under NAMES."""
        incident = self.incident
        return [
            incident.id,
            incident.severity,
            incident.alert.removeprefix("Rankskew"),
            incident.who.get("job_id", NOT_KNOWN),
            incident.place,
            incident.mostly("stage") or NOT_KNOWN,
            incident.mostly("cause") or NOT_KNOWN,
            length(incident.end - incident.begin),
            gpu_hours(self.gpu_hours),
            money(self.dollars),
            self.sends,
            self.verdict or NOT_KNOWN,
        ]

    def json(self) -> dict[str, Any]:
        """Return it for a program."""
        incident, said = self.incident, self.confirmation
        return {
            "incident": incident.id,
            "alert": incident.alert,
            "severity": incident.severity,
            "cluster": incident.who.get("cluster"),
            "job_id": incident.who.get("job_id"),
            "who": dict(incident.who),
            "stage": incident.mostly("stage"),
            "cause": incident.mostly("cause"),
            "begin": iso(incident.begin),
            "end": iso(incident.end),
            "seconds": incident.end - incident.begin,
            "gpu_hours": self.gpu_hours,
            "dollars": self.dollars,
            "sends": self.sends,
            "verdict": self.verdict,
            "note": said.note if said else None,
            "by": said.by if said else None,
        }


def read_incidents(
    history: PastSeries, times: Grid, matchers: str, said: Confirmations, gap_seconds: float
) -> list[ReportedIncident]:
    """Return the incidents of *times* that *matchers* select, in the order of their begin.

    Those that had begun before are followed back. Breaks up to *gap_seconds* are bridged. Raises
    Trouble.
    """
    fired = _fired(history, times, matchers, gap_seconds)
    found = [each for each in incidents(fired, gap_seconds) if each.end > times.begin]
    first = min((each.begin for each in found), default=times.begin)
    whole = Grid(min(first, times.begin), times.end, times.step_seconds)
    costs = Costs(history, whole, matchers)
    told = iter(sent([firing for each in found for firing in each.firings]))
    return [
        ReportedIncident(
            each,
            [next(told) for _ in each.firings],
            said.of(each.id, each.alert, each.who, each.begin, gap_seconds),
            *costs.of(each),
        )
        for each in found
    ]


def _fired(history: PastSeries, times: Grid, matchers: str, gap_seconds: float) -> list[Firing]:
    """Return what fired during *times*, and before as long as that may be the same incident."""
    first, step = times.begin, times.step_seconds
    found = history.read(fires(matchers), times)
    while first > times.begin - BACK_SECONDS and any(
        each.points and each.points[0][0] - first <= gap_seconds for each in found
    ):
        piece = Grid(first - round(PIECE_SECONDS / step) * step, first - step, step)
        older = history.read(fires(matchers), piece)
        if not older:
            break
        found, first = [*older, *found], piece.begin
    return with_names(history, Grid(first, times.end, step), firings(found, step))


# ---- Names of nodes ----------------------------------------------------------------------------


def with_names(history: PastSeries, times: Grid, fired: Sequence[Firing]) -> list[Firing]:
    """Return *fired* within *times*, with a label nodename where it is known; raises Trouble."""
    nameless = [each for each in fired if not each.labels.get("nodename")]
    those = of_addresses(each.labels.get("instance", "") for each in nameless)
    if those is None:
        return list(fired)
    recorded = f'last_over_time({NAME}{{{those},nodename!=""}}[{HOUR_SECONDS * 1000:.0f}ms])'
    named: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for each in history.read(recorded, Grid(times.begin, times.end + HOUR_SECONDS, HOUR_SECONDS)):
        named[each["cluster"], each["instance"]].append(each)
    return [
        _named(each, named[_node(each.labels)])
        if each in nameless and _node(each.labels) in named
        else each
        for each in fired
    ]


def _node(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("cluster", ""), labels.get("instance", "")


def _named(firing: Firing, known: Sequence[Series]) -> Firing:
    """Add the name of that time: an address may go to another node."""
    begin, _ = firing.spans[0]
    best = min(known, key=lambda each: min(abs(at - begin) for at, _ in each.points))
    return replace(firing, labels={**firing.labels, "nodename": best["nodename"]})
