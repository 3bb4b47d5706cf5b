"""Ranks of this process that push to an exporter, for faults that need no training."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.restarts import steps_on
from benchmarks.scrape.load import Rank, scrape
from devstack.parts import ExporterProcess
from devstack.process import wait_for
from rank_probe.report.push import Pusher

INTERVAL_SECONDS: Final = 0.1
BACK_SECONDS: Final = 10.0


class Pushing:
    """Pushes for *ranks* ranks from threads, ten times a second each."""

    def __init__(self, exporter: ExporterProcess, ranks: int = 4) -> None:
        self._exporter = exporter
        self.ranks = [Rank(rank, ranks) for rank in range(ranks)]
        self._pushers = [Pusher(exporter.target, rank, INTERVAL_SECONDS) for rank in self.ranks]

    def start(self) -> None:
        """Start pushing."""
        for pusher in self._pushers:
            pusher.start()

    def stop(self) -> None:
        """Push one last time."""
        for pusher in self._pushers:
            pusher.stop()

    def back_after(self) -> float:
        """Return the seconds until the page shows steps that were counted after this call."""
        began = time.monotonic()
        least = [rank.steps for rank in self.ranks]

        def is_back() -> bool | None:
            shown = page_steps(self._exporter)
            return all(shown.get(r, 0) > steps for r, steps in enumerate(least)) or None

        found = wait_for(is_back, 3 * BACK_SECONDS, every=0.05)
        return time.monotonic() - began if found else 3 * BACK_SECONDS

    def differ(self) -> int:
        """Return how many ranks the page shows other steps of than they have counted."""
        shown = page_steps(self._exporter)
        return sum(shown.get(rank) != each.steps for rank, each in enumerate(self.ranks))


def page_steps(exporter: ExporterProcess) -> dict[int, float]:
    """Return the steps on the page of *exporter*; empty while it does not answer."""
    try:
        return dict(steps_on(scrape(exporter.address)))
    except OSError:
        return {}


@contextmanager
def pushing(exporter: ExporterProcess, ranks: int = 4) -> Iterator[Pushing]:
    """Have ranks push to *exporter* while the block runs."""
    those = Pushing(exporter, ranks)
    those.start()
    try:
        yield those
    finally:
        those.stop()
