"""The last seconds of a reading, so that nothing between two scrapes is missed."""

from collections import deque


class ReadingWindow:
    """Readings of the last *seconds*, all with the same weight."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._readings: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        """Add *value*, read at monotonic time *now*, and drop what is too old."""
        self._readings.append((now, value))
        while self._readings[0][0] <= now - self._seconds:
            self._readings.popleft()

    def mean(self) -> float | None:
        """Return the mean of the readings, None if there are none."""
        if not self._readings:
            return None
        return sum(value for _, value in self._readings) / len(self._readings)
