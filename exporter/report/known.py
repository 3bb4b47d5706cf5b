"""Finds the incident behind an id: the id says when it began, Prometheus what fired then."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from exporter.client.prometheus import Prometheus
from exporter.report.incidents import identity, incident_id

ID: Final = re.compile(r"(\d\d)(\d\d)-(\d\d)(\d\d)-[a-z2-7]{4}")
FIRES: Final = 'ALERTS{alertstate="firing",alertname=~"Rankskew.*"}'
MINUTE_SECONDS: Final = 60.0
# An id has no year, and nobody judges what is older.
MOST_YEARS: Final = 2


@dataclass(frozen=True, slots=True)
class Known:
    """What an incident is of, and the minute in which it began, in Unix seconds."""

    alert: str
    who: Mapping[str, str]
    begin: float


def find(prometheus: Prometheus, incident: str, now: float) -> Known | None:
    """Return the incident with this id before *now*; None if nothing fired then that has it.

    Raises Trouble if *prometheus* cannot tell.
    """
    for begin in _minutes(incident, now):
        for fired in prometheus.query_range(FIRES, begin, begin + MINUTE_SECONDS, 1.0):
            alert, who = fired["alertname"], identity(fired.labels)
            if incident_id(alert, who, begin) == incident:
                return Known(alert, who, begin)
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
