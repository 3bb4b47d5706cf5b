"""What a collector is: the seam between a source of readings and the scrape."""

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.metrics_core import Metric


class NotAvailable(Exception):
    """Raised by a collector's constructor when this node lacks what it reads."""


class Collector(Protocol):
    """One source of readings. It knows nothing of HTTP, flags or other collectors."""

    name: str
    # Seconds between background samples; 0: read at every scrape, because reading only takes
    # memory.
    interval_seconds: float

    def collect(self) -> Iterable[Metric]:
        """Yield metric families; a missing reading is an absent series. May raise."""
        ...
