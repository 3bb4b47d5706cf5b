"""How long to wait before retrying after failures."""


class Backoff:
    """Seconds to wait after each consecutive failure: doubled each time, up to a cap."""

    def __init__(self, first_seconds: float, cap_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._cap_seconds = cap_seconds
        self._next_seconds = first_seconds

    def next_seconds(self) -> float:
        """Count one failure and return the wait after it."""
        seconds = self._next_seconds
        self._next_seconds = min(2 * seconds, self._cap_seconds)
        return seconds

    def reset(self) -> None:
        """Forget the failures, after a success."""
        self._next_seconds = self._first_seconds
