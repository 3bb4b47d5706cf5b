"""What incidents cost: GPUs that did nothing but wait, summed over the time of each incident."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.report.history import Grid, History, Line
from exporter.report.incidents import Incident
from exporter.report.times import HOUR_SECONDS

OF_RANK: Final = ("cluster", "job_id", "rank", "instance")
OF_NODE: Final = ("cluster", "job_id", "instance")
OF_JOB: Final = ("cluster", "job_id")


@dataclass(frozen=True, slots=True)
class Measure:
    """The *series* that says how many GPUs the *alerts* cost, and the labels both have."""

    alerts: tuple[str, ...]
    series: str
    labels: tuple[str, ...]
    kind: str = ""

    def expression(self, matchers: str) -> str:
        """Return the series while one of the alerts fires for the same labels."""
        names = "|".join(self.alerts)
        fires = f'ALERTS{{alertstate="firing",alertname=~"{names}"{matchers}}}'
        return f"({self.series} and on ({', '.join(self.labels)}) {fires})"


# Alerts on hardware have no cost of their own: a rank that it makes late has an alert for that.
MEASURES: Final = (
    Measure(("RankskewStraggler", "RankskewRankSlower"), "rank:rankskew_gpus_lost:sum", OF_RANK),
    Measure(("RankskewSlowNode",), "node:rankskew_gpus_lost:sum", OF_NODE),
    *(
        Measure((alert,), f'job_kind:rankskew_gpus_lost:sum{{kind="{kind}"}}', OF_JOB, kind)
        for alert, kind in (
            ("RankskewJobHung", "hung"),
            ("RankskewRotatingImbalance", "rotating"),
            ("RankskewStageImbalance", "group"),
            ("RankskewCommunicationBound", "common"),
        )
    ),
)
MEASURE_OF: Final = {alert: measure for measure in MEASURES for alert in measure.alerts}
PRICE: Final = "on (cluster, job_id) group_left () job:rankskew_gpu_hour_price:value"


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU-hours, and US$ if the rules record a price; None if it is not known."""

    gpu_hours: float | None
    dollars: float | None


NOT_KNOWN: Final = Cost(None, None)


class Costs:
    """The GPUs, and the US$ an hour, that each rank, node or job cost while its alert fired."""

    def __init__(self, history: History, times: Grid, matchers: str = "") -> None:
        lost = " or ".join(measure.expression(matchers) for measure in MEASURES)
        self._step = times.step_seconds
        self._gpus = _by_labels(history.lines(lost, times))
        self._dollars = _by_labels(history.lines(f"({lost}) * {PRICE}", times))

    def of(self, incident: Incident) -> Cost:
        """Return what *incident* cost; None for what nothing measures or records."""
        measure = MEASURE_OF.get(incident.alert)
        if measure is None:
            return NOT_KNOWN
        who = _who(measure, incident.firings[0].labels)
        return Cost(self._sum(self._gpus, who, incident), self._sum(self._dollars, who, incident))

    def _sum(
        self, lines: Mapping[tuple[str, ...], Sequence[Line]], who: tuple[str, ...], each: Incident
    ) -> float | None:
        values = [
            value
            for line in lines.get(who, ())
            for value in line.values[
                bisect_left(line.times, each.begin) : bisect_left(line.times, each.end)
            ]
        ]
        return sum(values) * self._step / HOUR_SECONDS if values else None


def _who(measure: Measure, labels: Mapping[str, str]) -> tuple[str, ...]:
    return (measure.kind, *(labels.get(name, "") for name in measure.labels))


def _by_labels(lines: Sequence[Line]) -> dict[tuple[str, ...], list[Line]]:
    found: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        of = OF_RANK if line["rank"] else OF_NODE if line["instance"] else OF_JOB
        found.setdefault((line["kind"], *(line[name] for name in of)), []).append(line)
    return found
