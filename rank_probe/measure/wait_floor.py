"""The floor of the exposed waits: what communication alone costs."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from rank_probe.measure.ledger import WholeStep
from rank_probe.wire.stages import SYNC

# The waits of the last minute are kept; with steps under 120 ms they cover less time.
RING: Final = 512
WINDOW_SECONDS: Final = 60.0
QUANTILE: Final = 0.02
# It changes slowly, and sorting the waits is most of the cost of a push.
READ_SECONDS: Final = 5.0


class WaitFloor:
    """The 2 % quantile of the waits of the last minute's steps; times are nanoseconds.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._waits: deque[tuple[int, int]] = deque(maxlen=RING)  # with the times of their ends
        self._floor: float | None = None
        self._read = 0

    def add(self, whole: Iterable[WholeStep]) -> None:
        """Add the exposed waits of *whole* steps."""
        self._waits.extend([(ended, spent[SYNC]) for ended, spent in whole])

    def seconds(self, now: int) -> float | None:
        """Return the floor; None if no step of the last minute is known. May be seconds old.

        This is the cost of communication alone, because the last rank to arrive waits for no other
        rank.
        """
        if self._floor is None or now - self._read > READ_SECONDS * 1e9:
            self._floor, self._read = self._quantile(now), now
        return self._floor

    def _quantile(self, now: int) -> float | None:
        oldest = now - WINDOW_SECONDS * 1e9
        waits = sorted(wait for ended, wait in self._waits if ended > oldest)
        return waits[int(QUANTILE * len(waits))] / 1e9 if waits else None
