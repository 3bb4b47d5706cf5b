"""Instant queries to a Prometheus."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exporter.top.fetch import Trouble, get_json
from exporter.top.fields import mapping, number, objects, text


@dataclass(frozen=True, slots=True)
class Sample:
    """A value now of the series *name* with *labels*; a label that it lacks is empty."""

    name: str
    labels: Mapping[str, str]
    value: float

    def __getitem__(self, label: str) -> str:
        return self.labels.get(label, "")


class Prometheus:
    """The server at *url*; *now* is its clock at the last answer."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.now = time.time()

    def query(self, expression: str) -> list[Sample]:
        """Return the value of *expression* now; raises Trouble."""
        said = get_json(self._url, "/api/v1/query", {"query": expression})
        if not isinstance(said, dict) or said.get("status") not in ("success", "error"):
            raise Trouble(f"{self._url} answers, but it is not a Prometheus.")
        if said["status"] == "error":
            raise Trouble(f"{self._url} cannot answer a query: {text(said.get('error'))}.")
        answers = map(_sample, objects(mapping(said.get("data")).get("result")))
        found = [each for each in answers if each is not None]
        for _, at in found:
            self.now = at
        return [sample for sample, _ in found]


def selector(**labels: str | None) -> str:
    """Return matchers of *labels*, those that are None left out; json quotes as PromQL does."""
    return ",".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in labels.items()
        if value is not None
    )


def _sample(said: Mapping[str, Any]) -> tuple[Sample, float] | None:
    """Return a sample and its time; None for what is no number, such as NaN."""
    try:
        at, value = said["value"]
        found = number(float(value))
    except (KeyError, TypeError, ValueError):
        return None
    if found is None:
        return None
    metric = {
        text(name) or "": text(each) or "" for name, each in mapping(said.get("metric")).items()
    }
    return Sample(metric.pop("__name__", ""), metric, found), number(at) or 0.0
