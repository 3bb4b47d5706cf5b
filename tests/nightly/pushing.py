"""Ranks of this process that push to an exporter, for faults that need no training."""

import time
from typing import Final, Self

from devstack.load import Rank, scrape, steps_on
from devstack.parts import ExporterProcess
from devstack.process import wait_for
from rank_probe.report.push import Pusher

BACK_SECONDS: Final = 10.0
# How often a rank tries its last push: a busy machine may take longer than a push may.
LAST_TRIES: Final = 10


class Pushing:
    """A context manager: inside, *ranks* ranks push ten times a second, each from its thread."""

    def __init__(self, exporter: ExporterProcess, ranks: int = 4) -> None:
        self._exporter = exporter
        self.ranks = [Rank(rank, ranks) for rank in range(ranks)]
        self._pushers = [Pusher(exporter.target, rank, 0.1) for rank in self.ranks]

    def __enter__(self) -> Self:
        for pusher in self._pushers:
            pusher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Push one last time, until it succeeds."""
        for pusher in self._pushers:
            for _ in range(LAST_TRIES):
                failed = pusher.failed_pushes
                pusher.stop()
                if pusher.failed_pushes == failed:
                    break

    @property
    def counted(self) -> dict[int, float]:
        """The steps of each rank by its own count."""
        return {number: float(rank.steps) for number, rank in enumerate(self.ranks)}

    @property
    def failed(self) -> int:
        """How many pushes were not answered."""
        return sum(pusher.failed_pushes for pusher in self._pushers)

    def back_after(self) -> float:
        """Return the seconds until the page shows steps that were counted after this call."""
        began, least = time.monotonic(), self.counted

        def is_back() -> bool | None:
            shown = page_steps(self._exporter)
            return all(shown.get(rank, 0) > steps for rank, steps in least.items()) or None

        wait_for(is_back, 3 * BACK_SECONDS, every=0.05)
        return time.monotonic() - began

    def differ(self) -> int:
        """Return how many ranks the page shows other steps of than they have counted."""
        return differ(page_steps(self._exporter), self.counted)


def page_steps(exporter: ExporterProcess) -> dict[int, float]:
    """Return the steps on the page of *exporter*; empty while it does not answer."""
    try:
        return steps_on(scrape(exporter.address))
    except OSError:
        return {}


def differ(*both: dict[int, float]) -> int:
    """Return how many ranks do not have the same steps in both."""
    ours, theirs = both
    return sum(ours.get(rank) != theirs.get(rank) for rank in ours.keys() | theirs.keys())


def tracebacks(exporter: ExporterProcess) -> int:
    """Return how many tracebacks *exporter* has logged."""
    return exporter.log.read_text().count("Traceback")
