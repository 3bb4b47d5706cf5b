"""Asks Prometheus what it has seen of a node; what a webhook says of it is not believed."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rankskew.act.model import Episode, Node, Seen
from rankskew.act.policy import GAP_SECONDS, is_of_node
from rankskew.client.prometheus import Prometheus, Series, selector
from rankskew.report.history import grid, spans_of
from rankskew.report.incidents import AlertIncident, firings, incidents
from rankskew.report.times import merged, seconds, within

ALERTS: Final = ("RankskewStraggler", "RankskewSlowNode")
FIRES: Final = f'ALERTS{{alertstate="firing",alertname=~"{"|".join(ALERTS)}"'
# A day is 1,440 points of each alert.
STEP_SECONDS: Final = 60.0
# A rank that says nothing for so long runs no more.
BEATING_SECONDS: Final = 120.0
PORT: Final = re.compile(r":[0-9]+$")


class NodeEvidence:
    """What *prometheus* knows of the last *seconds*; all of it raises Trouble if it cannot tell."""

    def __init__(self, prometheus: Prometheus, seconds: float) -> None:
        self._prometheus, self._seconds = prometheus, seconds

    def firing(self) -> set[Node]:
        """Return the nodes on which one of ALERTS fires now."""
        return {
            Node(each["cluster"], each["instance"]) for each in self._prometheus.query(f"{FIRES}}}")
        }

    def of(self, node: Node, now: float) -> Seen:
        """Return what is known of *node*."""
        where = selector(cluster=node.cluster, instance=node.instance)
        alerts = self._read(f"{FIRES},{where}}}", now)
        labels = "job_id, rank, cause, detail"
        causes = self._read(f"max by ({labels}) (rankskew_late_cause_info{{{where}}})", now)
        judged = self._read(f"max by (instance) (rankskew_job_coverage_ratio{{{where}}}) > 0", now)
        names = self._names(node.cluster)
        return Seen(
            node,
            _name(names, node.instance),
            sorted(_episodes(alerts, causes), key=lambda each: each.end),
            self._jobs(node, names),
            {f"cluster {node.cluster}".rstrip(): frozenset(_name(names, each) for each in names)},
            spans_of(judged, STEP_SECONDS),
        )

    def _read(self, expression: str, now: float) -> list[Series]:
        times = grid(now - self._seconds, now, STEP_SECONDS)
        return [
            series
            for begin, end in times.chunks()
            for series in self._prometheus.query_range(expression, begin, end, times.step_seconds)
        ]

    def _names(self, cluster: str) -> Mapping[str, str]:
        """Return the instances of all exporters of *cluster* that are up, and their names."""
        built = f"rankskew_exporter_build_info{{{selector(cluster=cluster)}}}"
        return {each["instance"]: each["nodename"] for each in self._prometheus.query(built)}

    def _jobs(self, node: Node, names: Mapping[str, str]) -> dict[str, frozenset[str]]:
        where = selector(cluster=node.cluster)
        beats = f"time() - rankskew_heartbeat_timestamp_seconds{{{where}}} < {BEATING_SECONDS:g}"
        found: dict[str, set[str]] = defaultdict(set)
        for each in self._prometheus.query(f"group by (job_id, instance) ({beats})"):
            found[each["job_id"]].add(each["instance"])
        return {
            job_id: frozenset(_name(names, each) for each in instances)
            for job_id, instances in found.items()
            if node.instance in instances
        }


def _name(names: Mapping[str, str], instance: str) -> str:
    return names.get(instance) or PORT.sub("", instance)


def _episodes(alerts: Iterable[Series], causes: Sequence[Series]) -> Iterator[Episode]:
    """Yield what *alerts* tell: those of the node's own causes together, the others one by one."""
    found = incidents(firings(alerts, STEP_SECONDS), GAP_SECONDS)
    episodes = [_episode(each, causes) for each in found]
    of_node = [each for each in episodes if is_of_node(each.cause, each.detail)]
    for begin, end in merged((span for each in of_node for span in each.spans), GAP_SECONDS):
        those = [each for each in of_node if begin <= each.end <= end]
        longest = max(those, key=lambda each: seconds(each.spans))
        spans = merged(span for each in those for span in each.spans)
        yield replace(longest, spans=spans, incidents=[i for e in those for i in e.incidents])
    yield from (each for each in episodes if each not in of_node)


def _episode(incident: AlertIncident, causes: Sequence[Series]) -> Episode:
    cause, job_id = incident.mostly("cause") or "unknown", incident.who.get("job_id", "")
    its = [each for each in causes if (each["cause"], each["job_id"]) == (cause, job_id)]
    detail = _detail(incident, its)
    return Episode(incident.spans, cause, detail, job_id, incident.place, [incident.id])


def _detail(incident: AlertIncident, causes: Iterable[Series]) -> str:
    """Return the detail that the ranks of *incident* had for the longest time."""
    who, lengths = incident.who, defaultdict[str, float](float)
    for each in causes:
        if who.get("rank", each["rank"]) == each["rank"]:
            spans = within(spans_of([each], STEP_SECONDS), incident.begin, incident.end)
            lengths[each["detail"]] += seconds(spans)
    return max(sorted(lengths), key=lambda name: lengths[name]) if lengths else ""
