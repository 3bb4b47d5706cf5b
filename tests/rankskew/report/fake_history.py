"""A Prometheus that answers range queries from what a test wrote down."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from tests.rankskew.client.servers import Answer, json_answer, serving

_WINDOW: Final = re.compile(r"_over_time\(.*\[(\d+)ms\]")
# Labels, when it has a value (before the end), and the value.
Written = tuple[Mapping[str, str], Sequence[tuple[float, float]], float]


@dataclass
class FakeHistory:
    """Answers an expression with the series of the first key of *past* that is in it.

    *refused* are its words to each query for more than *most* points per series.
    """

    past: Mapping[str, Sequence[Written]]
    most: int = 11_000
    refused: str = "exceeded maximum resolution of 11,000 points per timeseries"
    asked: list[dict[str, str]] = field(default_factory=list)

    def answer(self, path: str, form: dict[str, str]) -> Answer:
        self.asked.append(form)
        if path == "/api/v1/query":
            return self._result([])
        start, end, step = (float(form[name]) for name in ("start", "end", "step"))
        points = round((end - start) / step) + 1
        if points > self.most:
            return json_answer({"status": "error", "error": self.refused}, 422)
        return self._result(self._series(form["query"], start, step, points))

    def _series(self, query: str, start: float, step: float, points: int) -> list[dict[str, Any]]:
        key = next((key for key in self.past if key in query), None)
        window = _WINDOW.search(query)
        back = float(window[1]) / 1000 if window else 0.0
        found = []
        for labels, spans, value in self.past[key] if key else ():
            inside = [
                start + n * step
                for a, b in spans
                for n in range(
                    max(0, ceil((a - start) / step)), min(points, ceil((b + back - start) / step))
                )
            ]
            values = [[at, str(value)] for at in inside]
            if values:
                found.append({"metric": dict(labels), "values": values})
        return found

    @staticmethod
    def _result(found: list[dict[str, Any]]) -> Answer:
        return json_answer({"status": "success", "data": {"result": found}})

    @contextmanager
    def serve(self) -> Iterator[str]:
        with serving(self.answer) as url:
            yield url
