"""What a scrape of some collectors looks like."""

from prometheus_client import CollectorRegistry, generate_latest

from exporter.collectors.base import Collector
from exporter.scrape.sampling import Scrape


def expose(*collectors: Collector) -> str:
    """Return the whole page with *collectors* alone on it."""
    registry = CollectorRegistry()
    registry.register(Scrape(list(collectors)))
    return generate_latest(registry).decode()


def page(*collectors: Collector) -> str:
    """Return what *collectors* show as a golden file has it: without how they did."""
    lines = expose(*collectors).splitlines(keepends=True)
    return "".join(line for line in lines if "rankskew_collector_" not in line)


def series(page: str) -> list[str]:
    """Return the sample lines of *page*, without what the scrape adds for each collector."""
    return [line for line in page.splitlines() if not line.startswith(("#", "rankskew_collector_"))]


def shown(collector: Collector, start: str = "") -> list[str]:
    """Return the series of *collector* with such names; it must not have failed."""
    page = expose(collector)
    assert "rankskew_collector_success{" not in page or f'"{collector.name}"}} 1.0' in page
    return [line for line in series(page) if line.startswith(start)]
