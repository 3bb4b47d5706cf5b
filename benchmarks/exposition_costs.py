"""What a page costs to write: by the exporter's encoder, and by prometheus_client's own.

Both write the same families, read from the page of a real exporter with 8 stub GPUs and 8 ranks.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from benchmarks.report import write
from benchmarks.scrape import GPUS, RANKS, pushing, scrape
from demo.process import wait_for
from demo.stack import Exporter
from exporter.scrape.text_format import encode
from tests import nvmlstub

ROUNDS = 300


class Page(Collector):
    """The families of one page, as a registry takes them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> list[Metric]:
        """Return the families."""
        return self._families


def page_of_an_exporter(directory: Path) -> str:
    """Return a page that shows all GPUs and ranks."""
    environment = nvmlstub.environment(nvmlstub.build(directory), gpus=GPUS)
    with Exporter(directory, environment=environment) as exporter, pushing(exporter):

        def whole() -> bytes | None:
            page = scrape(exporter.address)
            return page if page.count(b"rankskew_steps_total{") == RANKS else None

        page = wait_for(whole, 20)
        if page is None:
            raise exporter.failure(f"did not show {RANKS} ranks in 20 s")
        return page.decode()


def median_ms(work: Callable[[], Any]) -> float:
    """Return the median CPU time of *work* in milliseconds."""
    times = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        work()
        times.append((time.thread_time() - started) * 1e3)
    return statistics.median(times)


def main() -> None:
    """Measure and tell."""
    with tempfile.TemporaryDirectory() as directory:
        page = Page(text_string_to_metric_families(page_of_an_exporter(Path(directory))))
    families = page.collect()
    series = sum(len(family.samples) for family in families)
    ways: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        ("text", lambda: encode(families, False), lambda: generate_latest(page)),
        (
            "OpenMetrics",
            lambda: encode(families, True),
            lambda: openmetrics.generate_latest(page),  # type: ignore[no-untyped-call] # upstream
        ),
    ]
    rows = [
        {
            "format": name,
            "series": series,
            "the exporter's encoder, ms": median_ms(ours),
            "prometheus_client's, ms": median_ms(theirs),
        }
        for name, ours, theirs in ways
    ]
    write("exposition_costs", rows, ("prometheus-client",))


if __name__ == "__main__":
    main()
