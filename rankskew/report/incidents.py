"""Incidents: what fired for one rank, node or job, however its severity, stage or cause changed."""

import hashlib
import re
from base64 import b32encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from rankskew.client.prometheus import Prometheus, Series
from rankskew.report.history import spans_of
from rankskew.report.times import Span, merged, seconds, show

# The worst first.
SEVERITIES: Final = ("critical", "warning", "info")
# What an incident is of. Severity, stage, cause, kind and the like change while it lasts.
IDENTITY: Final = ("cluster", "job_id", "peer_group", "rank", "instance", "gpu_uuid", "state")
# A job hangs once, whichever of its ranks is the suspect.
OF_JOB: Final = {"RankskewJobHung": ("cluster", "job_id")}
ID_LETTERS: Final = 4
ID: Final = re.compile(r"(\d\d)(\d\d)-(\d\d)(\d\d)-[a-z2-7]{4}")
MINUTE_SECONDS: Final = 60.0
# An id has no year, and nobody judges what is older.
MOST_YEARS: Final = 2


@dataclass(frozen=True, slots=True)
class Firing:
    """One alert with all of its *labels*, and when it fired."""

    labels: Mapping[str, str]
    spans: Sequence[Span]

    @property
    def alert(self) -> str:
        """Return its name."""
        return self.labels.get("alertname", "")


@dataclass(frozen=True)
class AlertIncident:
    """The *firings* of one *alert* for the same *who*, with no long break between them."""

    alert: str
    who: Mapping[str, str]
    firings: Sequence[Firing]

    @cached_property
    def spans(self) -> list[Span]:
        """When it fired."""
        return merged(span for firing in self.firings for span in firing.spans)

    @property
    def begin(self) -> float:
        """When it fired first, in Unix seconds."""
        return self.spans[0][0]

    @property
    def end(self) -> float:
        """When it last fired, in Unix seconds."""
        return self.spans[-1][1]

    @cached_property
    def id(self) -> str:
        """A name that each report gives it: month and day, hour and minute, and four letters."""
        return incident_id(self.alert, self.who, self.begin)

    @property
    def severity(self) -> str:
        """The worst that it had."""
        found = {firing.labels.get("severity", "") for firing in self.firings}
        return next((each for each in SEVERITIES if each in found), min(found))

    def mostly(self, label: str) -> str | None:
        """Return the value of *label* that it had for the longest time."""
        times: dict[str, float] = defaultdict(float)
        for firing in self.firings:
            times[firing.labels.get(label, "")] += seconds(firing.spans)
        times.pop("", None)
        return max(sorted(times), key=lambda value: times[value]) if times else None

    @property
    def place(self) -> str:
        """Say which rank, GPU or node it was."""
        ranks = sorted(
            {f.labels["rank"] for f in self.firings if f.labels.get("rank")}, key=_number
        )
        found = [f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"] if ranks else []
        gpu, node = self.mostly("gpu_uuid"), self.mostly("nodename") or self.mostly("instance")
        if gpu and not ranks:
            found.append(gpu)
        if node:
            found.append(f"{'on ' if found else ''}{node}")
        return " ".join(found) or self.who.get("peer_group") or "the job"


def identity(labels: Mapping[str, str]) -> dict[str, str]:
    """Return which of the *labels* of an alert say what it is of."""
    names = OF_JOB.get(labels.get("alertname", ""), IDENTITY)
    # A rank may learn of its peer group late.
    left_out = "peer_group" if labels.get("rank") else ""
    return {name: labels[name] for name in names if labels.get(name) and name != left_out}


def incident_id(alert: str, who: Mapping[str, str], begin: float) -> str:
    """Return the id of the incident of *alert* for *who* that began in the minute of *begin*."""
    said = "\n".join([alert, *(f"{name}={who[name]}" for name in sorted(who)), show(begin)])
    letters = b32encode(hashlib.sha256(said.encode()).digest()).decode().lower()
    return f"{datetime.fromtimestamp(begin, UTC):%m%d-%H%M}-{letters[:ID_LETTERS]}"


def fires(matchers: str = "") -> str:
    """Return the series of our alerts that fire, with further *matchers*."""
    more = f",{matchers}" if matchers else ""
    return f'ALERTS{{alertstate="firing",alertname=~"Rankskew.*"{more}}}'


def firings(found: Iterable[Series], step_seconds: float) -> list[Firing]:
    """Return the alerts in the series of ALERTS that were *found*, read every *step_seconds*."""
    return [
        Firing(
            {name: text for name, text in each.labels.items() if name != "alertstate"},
            spans_of([each], step_seconds),
        )
        for each in found
    ]


def incidents(fired: Iterable[Firing], gap_seconds: float) -> list[AlertIncident]:
    """Return the incidents in *fired*, by their begin; a break of *gap_seconds* ends one."""
    alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[Firing]] = defaultdict(list)
    for firing in fired:
        who = tuple(sorted(identity(firing.labels).items()))
        alike[firing.alert, who].append(firing)
    found = [
        AlertIncident(alert, dict(who), _during(those, whole))
        for (alert, who), those in alike.items()
        for whole in merged((span for each in those for span in each.spans), gap_seconds)
    ]
    return sorted(found, key=lambda each: (each.begin, each.id))


def _during(those: Sequence[Firing], whole: Span) -> list[Firing]:
    """Return the part of each firing within *whole*, which cuts none of its spans."""
    begin, end = whole
    cut = [
        Firing(each.labels, [span for span in each.spans if begin <= span[0] < end])
        for each in those
    ]
    return [each for each in cut if each.spans]


def _number(rank: str) -> tuple[int, str]:
    return (int(rank), "") if rank.isdecimal() else (0, rank)


# ---- By its id ----------------------------------------------------------------------------------


def find(
    prometheus: Prometheus, incident: str, now: float
) -> tuple[str, Mapping[str, str], float] | None:
    """Return what the *incident* with this id is: its alert, of whom, and when it began.

    None if nothing that has this id fired before *now*. Raises Trouble if *prometheus* cannot tell.
    """
    for begin in _minutes(incident, now):
        end = begin + MINUTE_SECONDS
        for fired in prometheus.query_range(fires(), begin, end, 1.0):
            alert, who = fired["alertname"], identity(fired.labels)
            if incident_id(alert, who, begin) == incident:
                return alert, who, begin
    return None


def _minutes(incident: str, now: float) -> Iterator[float]:
    """Yield the minutes that the id may mean, the latest first; none if it is no id."""
    match = ID.fullmatch(incident)
    if match is None:
        return
    month, day, hour, minute = map(int, match.groups())
    this_year = datetime.fromtimestamp(now, UTC).year
    for year in range(this_year, this_year - MOST_YEARS, -1):
        try:
            begin = datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp()
        except ValueError:  # No such day, or not in this year.
            continue
        if begin <= now:
            yield begin
