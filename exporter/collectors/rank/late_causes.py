"""Late causes: why each late rank of this node is late."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY
from exporter.evidence.late_causes import LateCauses
from rank_probe.judge.verdict import MOST_LATE

# Texts are no names: a page has room for them, and Prometheus for a few of them.
SENTENCE_CHARACTERS: Final = 256


class LateCausesCollector:
    """Expose what *causes* say of at most 32 ranks a job; call from the event loop."""

    name = "late_causes"
    interval_seconds = 0.0

    def __init__(self, causes: LateCauses) -> None:
        self._causes = causes

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "rankskew_late_cause_info",
            "Why this late rank is late, and what to do first; always 1. The cause is unknown if "
            "no measured cause accounts for half of the delay. gpu is its index, pid that of its "
            "process on the node (exporter, from all that it reads).",
            labels=[
                *IDENTITY,
                *("cause", "detail", "figure", "nodename", "gpu", "pid"),
                *("sentence", "first_action"),
            ],
        )
        share = GaugeMetricFamily(
            "rankskew_late_cause_share_ratio",
            "Share of this late rank's delay, its time beyond that of its peers, that the cause "
            "accounts for, 0 to 1 (exporter, from all that it reads).",
            labels=IDENTITY,
        )
        figure = GaugeMetricFamily(
            "rankskew_late_cause_figure",
            "The figure that shows the cause, of the late rank and of its peers, in the unit at "
            "the end of its name; absent for a cause without one (exporter, from all that it "
            "reads).",
            labels=[*IDENTITY, "figure", "of"],
        )
        count: dict[str, int] = {}
        for (job_id, rank), told in sorted(self._causes.all().items()):
            count[job_id] = count.get(job_id, 0) + 1
            if count[job_id] > MOST_LATE:
                continue
            who, cause, place = [job_id, told.place.peer_group, str(rank)], told.cause, told.place
            where = [place.node, place.gpu, place.pid]
            texts = [shortened(cause.sentence), shortened(cause.first_action)]
            info.add_metric([*who, cause.cause, cause.detail, cause.figure, *where, *texts], 1)
            share.add_metric(who, cause.share)
            for of, value in (("rank", cause.value), ("peers", cause.peers_value)):
                if cause.figure and value is not None:
                    figure.add_metric([*who, cause.figure, of], value)
        yield from (info, share, figure)


def shortened(text: str) -> str:
    """Return *text*, cut where it is longer than a label should be."""
    return text if len(text) <= SENTENCE_CHARACTERS else text[: SENTENCE_CHARACTERS - 1] + "…"
