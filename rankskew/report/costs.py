"""What incidents cost: GPUs that did nothing but wait, summed over the time of each incident."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from rankskew.client.prometheus import Series
from rankskew.report.history import Grid, PastSeries
from rankskew.report.incidents import AlertIncident
from rankskew.report.losses import slower_gpus
from rankskew.report.times import HOUR_SECONDS

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
        named = ",".join(filter(None, [f'alertname=~"{"|".join(self.alerts)}"', matchers]))
        fires = f'ALERTS{{alertstate="firing",{named}}}'
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
    Measure(("RankskewJobSlower",), f"max by (cluster, job_id) ({slower_gpus('')})", OF_JOB),
)
MEASURE_OF: Final = {alert: measure for measure in MEASURES for alert in measure.alerts}
PRICE: Final = "on (cluster, job_id) group_left () job:rankskew_gpu_hour_price:value"


class Costs:
    """The GPUs, and the US$ an hour, that each rank, node or job cost while its alert fired."""

    def __init__(self, history: PastSeries, times: Grid, matchers: str = "") -> None:
        lost = " or ".join(measure.expression(matchers) for measure in MEASURES)
        self._step = times.step_seconds
        self._gpus = _by_labels(history.read(lost, times))
        self._dollars = _by_labels(history.read(f"({lost}) * {PRICE}", times))

    def of(self, incident: AlertIncident) -> tuple[float | None, float | None]:
        """Return the GPU-hours and US$ of *incident*; None for what nothing measures or records."""
        measure = MEASURE_OF.get(incident.alert)
        if measure is None:
            return None, None
        labels = incident.firings[0].labels
        who = measure.kind, *(labels.get(name, "") for name in measure.labels)
        gpus, dollars = self._gpus.get(who, ()), self._dollars.get(who, ())
        return self._sum(gpus, incident), self._sum(dollars, incident)

    def _sum(self, found: Sequence[Series], during: AlertIncident) -> float | None:
        values = [
            value
            for each in found
            for _, value in each.points[_place(each, during.begin) : _place(each, during.end)]
        ]
        return sum(values) * self._step / HOUR_SECONDS if values else None


def _place(series: Series, at: float) -> int:
    return bisect_left(series.points, at, key=itemgetter(0))


def _by_labels(found: Sequence[Series]) -> dict[tuple[str, ...], list[Series]]:
    alike: dict[tuple[str, ...], list[Series]] = defaultdict(list)
    for each in found:
        of = OF_RANK if each["rank"] else OF_NODE if each["instance"] else OF_JOB
        alike[each["kind"], *(each[name] for name in of)].append(each)
    return alike
