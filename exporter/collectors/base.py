"""What a collector is: the seam between a source of readings and the scrape."""

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.metrics_core import Metric


class Collector(Protocol):
    """One source of readings. It knows nothing of HTTP, flags or other collectors.

    Its constructor reads nothing. On a node that lacks what it reads it yields no samples.
    """

    name: str
    # Seconds between background samples; 0: read at every scrape, because reading only takes
    # memory.
    interval_seconds: float

    def collect(self) -> Iterable[Metric]:
        """Yield metric families; a missing reading is an absent series. May raise."""
        ...
