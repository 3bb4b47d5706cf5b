"""A Prometheus of which a test says what it has seen, and a target that notes what it is told."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from rankskew.act.targets.target import Line
from rankskew.client.fetch import Trouble
from tests.rankskew.act.nodes import NOW
from tests.rankskew.client.servers import Answer, json_answer, serving

LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
METRIC: Final = re.compile(r"ALERTS|rankskew_\w+")
# Labels, and when the series has a value.
Written = tuple[Mapping[str, str], Sequence[tuple[float, float]]]
ALWAYS: Final = [(0.0, 2 * NOW)]


@dataclass
class FakeSite:
    """Answers with all series of the metric that a query names, and whose labels it asks for."""

    series: dict[str, list[Written]] = field(default_factory=dict)
    now: float = NOW
    is_down: bool = False

    def add(self, metric: str, *spans: tuple[float, float], **labels: str) -> None:
        """Write down a series, at all times without *spans*."""
        self.series.setdefault(metric, []).append((labels, spans or ALWAYS))

    def node(self, name: str, *jobs: str, instance: str = "") -> None:
        """Write down a node whose exporter is up, and on which *jobs* run."""
        instance = instance or f"{name}:9917"
        self.add("rankskew_exporter_build_info", instance=instance, nodename=name)
        for job_id in jobs:
            self.add("rankskew_heartbeat_timestamp_seconds", instance=instance, job_id=job_id)

    def late(
        self,
        *spans: tuple[float, float],
        instance: str = "n1:9917",
        cause: str = "slow_device",
        detail: str = "clocks",
        alert: str = "RankskewStraggler",
        **more: str,
    ) -> None:
        """Write down that a rank was late."""
        who = {"job_id": "llama", "rank": "9", "instance": instance, "cause": cause} | more
        self.add("ALERTS", *spans, alertname=alert, alertstate="firing", severity="warning", **who)
        self.add("rankskew_late_cause_info", *spans, detail=detail, **who)

    def answer(self, path: str, form: dict[str, str]) -> Answer:
        if self.is_down:
            return 503, "text/plain", b"starting"
        metric = METRIC.search(form["query"])
        assert metric is not None
        wanted = [(n, v) for n, v in LABEL.findall(form["query"]) if n != "alertname"]
        found = [
            (labels, spans)
            for labels, spans in self.series.get(metric[0], [])
            if all(labels.get(name, "") == value for name, value in wanted)
        ]
        if path == "/api/v1/query":
            values = [
                {"metric": dict(labels), "value": [self.now, "1"]}
                for labels, spans in found
                if any(begin <= self.now <= end for begin, end in spans)
            ]
        else:
            start, end, step = (float(form[name]) for name in ("start", "end", "step"))
            times = [start + n * step for n in range(ceil((end - start) / step + 0.5))]
            values = [
                {"metric": dict(labels), "values": [[at, "1"] for at in times if _in(spans, at)]}
                for labels, spans in found
                if any(_in(spans, at) for at in times)
            ]
        return json_answer({"status": "success", "data": {"result": values}})

    @contextmanager
    def serve(self) -> Iterator[str]:
        with serving(self.answer) as url:
            yield url


def _in(spans: Sequence[tuple[float, float]], at: float) -> bool:
    return any(begin <= at < end for begin, end in spans)


@dataclass
class FakeTarget:
    """Holds what it is told to hold; *fails* is its answer, if it has one."""

    name: str = "fake"
    held: set[str] = field(default_factory=set)
    told: list[tuple[str, str]] = field(default_factory=list)
    fails: str = ""
    partitions: dict[str, frozenset[str]] = field(default_factory=dict)

    def pools(self) -> Mapping[str, frozenset[str]]:
        return self.partitions

    def holds(self, name: str) -> bool:
        return name in self.held

    def hold(self, line: Line) -> None:
        self._tell(line)
        self.held.add(line["name"])

    def free(self, line: Line) -> None:
        self._tell(line)
        self.held.discard(line["name"])

    def _tell(self, line: Line) -> None:
        self.told.append((line["event"], line["name"]))
        if self.fails:
            raise Trouble(self.fails)


def events(log: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a log says, in short."""
    return [f"{line['event']} {line['name']} {line['rule']}" for line in log]
