"""Queries to a Prometheus, and the names of nodes that it knows by their addresses."""

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Final

from rankskew.client.fetch import ANYONE, Access, Trouble, get_json

# Without these, Thanos and VictoriaMetrics may answer from some of their stores only.
WHOLE: Final = {"partial_response": "false", "deny_partial_response": "1"}
# How far back to look for a node's name: its exporter may just have gone.
BACK: Final = "1h"
ADDRESS: Final = re.compile(r"[0-9.]+(:[0-9]+)?|.*:.*:.*")


@dataclass(frozen=True, slots=True)
class Sample:
    """A value now of the series *name* with *labels*; a label that it lacks is empty."""

    name: str
    labels: Mapping[str, str]
    value: float

    def __getitem__(self, label: str) -> str:
        return self.labels.get(label, "")


@dataclass(frozen=True, slots=True)
class Series:
    """The values of the series *name* with *labels*, at times in Unix seconds, in their order."""

    name: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]

    def __getitem__(self, label: str) -> str:
        return self.labels.get(label, "")


@dataclass(slots=True)
class Prometheus:
    """The server at *url*; *now* is its clock at the last answer.

    Queries without a time of their own are about *at*, a Unix time, or now. Each answer may take
    *timeout_seconds*, by default as long as a person waits. *access* is how the server is reached.
    """

    url: str
    at: float | None = None
    timeout_seconds: float | None = None
    access: Access = ANYONE
    now: float = field(init=False)

    def __post_init__(self) -> None:
        self.now = time.time() if self.at is None else self.at

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """Return the value of *expression* at the Unix time *at*, or now; raises Trouble.

        Values that are not finite, such as NaN, are left out.
        """
        at = self.at if at is None else at
        query = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
        found = [each for each in self._series("/api/v1/query", query) if each.points]
        if found:
            self.now = found[-1].points[0][0]
        return [Sample(each.name, each.labels, each.points[0][1]) for each in found]

    def query_range(
        self, expression: str, start: float, end: float, step_seconds: float
    ) -> list[Series]:
        """Return the values of *expression* from *start* to *end*, Unix times; raises Trouble.

        Prometheus refuses more than 11,000 points per series.
        """
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_seconds:g}"}
        return self._series("/api/v1/query_range", {"query": expression} | times)

    def _series(self, path: str, query: Mapping[str, str]) -> list[Series]:
        """Return the series in an answer; an instant value becomes a series of one point."""
        said = get_json(self.url, path, {**query, **WHOLE}, self.timeout_seconds, self.access)
        if isinstance(said, dict) and said.get("status") == "error":
            raise Trouble(f"{self.url} cannot answer a query: {said.get('error')}.")
        if isinstance(said, dict) and said.get("isPartial"):
            raise Trouble(f"{self.url} has no answer of some of its stores.")
        try:
            return [_series(each) for each in said["data"]["result"]]
        except (KeyError, TypeError, ValueError) as error:
            raise Trouble(f"{self.url} answers, but it is not a Prometheus.") from error


def _series(said: Mapping[str, Any]) -> Series:
    labels = dict(said["metric"])
    points = said["values"] if "values" in said else [said["value"]]
    numbers = ((float(at), float(value)) for at, value in points)
    return Series(
        labels.pop("__name__", ""), labels, [each for each in numbers if isfinite(each[1])]
    )


def selector(**labels: str | None) -> str:
    """Return matchers of *labels*, those that are None left out; json quotes as PromQL does."""
    return ",".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in labels.items()
        if value is not None
    )


# ---- Names of nodes, as their exporters tell them ------------------------------------------------


def with_names(prometheus: Prometheus, samples: Iterable[Sample]) -> list[Sample]:
    """Return *samples* with names instead of addresses, to be shown; raises Trouble."""
    samples = list(samples)
    addresses = sorted(filter(ADDRESS.fullmatch, {each["instance"] for each in samples}))
    if not addresses:
        return samples
    those = selector(instance="|".join(map(re.escape, addresses))).replace("=", "=~", 1)
    info = f'rankskew_exporter_build_info{{{those},nodename!=""}}[{BACK}]'
    names = {
        (each["cluster"], each["instance"]): each["nodename"]
        for each in prometheus.query(f"last_over_time({info})")
    }

    def named(each: Sample) -> Sample:
        name = names.get((each["cluster"], each["instance"]), each["instance"])
        return replace(each, labels={**each.labels, "instance": name})

    return [named(each) if each["instance"] else each for each in samples]
