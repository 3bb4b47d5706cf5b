"""The figures of ranks, GPUs and the node over the last half hour, as sums over any window.

Figures are not averaged as they are read. Each is a sum and a weight that only grow; its mean over
a window is the growth of the sum divided by the growth of the weight.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final, NamedTuple

# Any three samples in a row span at least this time. Of samples older than two minutes, one is kept
# per minute.
KEPT_SECONDS: Final = 3.0
FINE_SECONDS: Final = 120.0
COARSE_SECONDS: Final = 60.0
DEPTH_SECONDS: Final = 1800.0
# No source has a third of them; whatever goes wrong, memory is bounded.
MOST_FIGURES: Final = 128


class Increment(NamedTuple):
    """What a figure has grown by: an *amount*, for a *weight* of seconds, steps or whatever it is
    a mean over.
    """

    figure: str
    amount: float
    weight: float


class Ring:
    """A track of samples for each subject: a rank, a GPU, or the node. *least* as in Track.means.

    A track has 90 samples of a sum and a weight for each figure: 43 KB for a rank with 30 figures.
    It has at most 110, while a rank is late and sampled every second.
    """

    def __init__(self, least: Mapping[str, float] | None = None) -> None:
        self._least = least or {}
        self._tracks: dict[Hashable, Track] = {}

    def add(self, subject: Hashable, now: float, increments: Iterable[Increment]) -> None:
        """Add what was read of *subject* since the last time."""
        self._tracks.setdefault(subject, Track()).add(now, increments)

    def keep(self, subjects: Collection[Hashable]) -> None:
        """Forget all others."""
        for subject in self._tracks.keys() - subjects:
            del self._tracks[subject]

    def means(self, subject: Hashable, since: float, until: float = math.inf) -> dict[str, float]:
        """Return the mean of each figure of *subject* in that time, where there is one."""
        track = self._tracks.get(subject)
        return {} if track is None else track.means(since, self._least, until)

    def covered_seconds(self, subject: Hashable, since: float, until: float = math.inf) -> float:
        """Return how much of that time has been sampled."""
        track = self._tracks.get(subject)
        return 0.0 if track is None else track.covered_seconds(since, until)


class Track:
    """The samples of one subject, in order: each has the sums and weights of all figures so far."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._totals = array("d")
        self._times: list[float] = []
        self._samples: list[array[float]] = []
        self._coarse = 0  # How many of the oldest are a minute apart.

    def add(self, now: float, increments: Iterable[Increment]) -> None:
        """Add *increments*; the newest sample replaces the one before it while that is too near."""
        for figure, amount, weight in increments:
            column = self._column(figure)
            if column is not None and math.isfinite(amount) and math.isfinite(weight):
                self._totals[column] += amount
                self._totals[column + 1] += weight
        if len(self._times) > 1 and now - self._times[-2] < KEPT_SECONDS:
            self._times.pop()
            self._samples.pop()
        self._times.append(now)
        self._samples.append(self._totals[:])
        self._thin(now)

    def means(
        self, since: float, least: Mapping[str, float], until: float = math.inf
    ) -> dict[str, float]:
        """Return the mean of each figure over the samples from *since* to *until*.

        A figure in *least* is left out if it has less than that weight per second.
        """
        first, last = self._between(since, until)
        if first >= last:
            return {}
        began, ended = self._samples[first], self._samples[last]
        seconds = self._times[last] - self._times[first]
        found = {}
        for figure, column in self._columns.items():
            if column >= len(ended):
                continue
            amount, weight = ended[column], ended[column + 1]
            if column < len(began):
                amount -= began[column]
                weight -= began[column + 1]
            if weight > 0 and weight >= least.get(figure, 0.0) * seconds:
                found[figure] = amount / weight
        return found

    def covered_seconds(self, since: float, until: float = math.inf) -> float:
        """Return the time between the first and the last sample from *since* to *until*."""
        first, last = self._between(since, until)
        return self._times[last] - self._times[first] if first < last else 0.0

    def _between(self, since: float, until: float) -> tuple[int, int]:
        return bisect_left(self._times, since), bisect_right(self._times, until) - 1

    def _column(self, figure: str) -> int | None:
        column = self._columns.get(figure)
        if column is None and len(self._columns) < MOST_FIGURES:
            column = self._columns[figure] = len(self._totals)
            self._totals.extend((0.0, 0.0))
        return column

    def _thin(self, now: float) -> None:
        """Drop samples that are too old, or too close to the coarse sample before them."""
        while self._times[0] < now - DEPTH_SECONDS:
            self._drop(0)
            self._coarse = max(self._coarse - 1, 0)
        while self._coarse < len(self._times) and self._times[self._coarse] < now - FINE_SECONDS:
            at = self._coarse
            if at and self._times[at] - self._times[at - 1] < COARSE_SECONDS:
                self._drop(at)
            else:
                self._coarse += 1

    def _drop(self, at: int) -> None:
        del self._times[at], self._samples[at]
