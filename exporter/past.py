"""What figures were some time ago: a short memory that holds them where they change."""

from collections import deque
from collections.abc import Hashable
from typing import Final

# Scrapers may ask more often than this: what they see in between is not worth remembering.
LOOK_SECONDS: Final = 5.0


class Past:
    """Each figure's values over the last *seconds*, by a key of the caller's.

    Times are in seconds of any one clock. A figure that does not change takes a single entry.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._changes: dict[Hashable, deque[tuple[float, float]]] = {}

    def see(self, key: Hashable, value: float, now: float, before: float | None = None) -> None:
        """Remember *value*; *before* is what a figure seen for the first time was until now."""
        changes = self._changes.get(key)
        if changes is None:
            changes = self._changes[key] = deque()
            if before is not None:
                changes.append((now, before))
        if not changes or changes[-1][1] != value:
            changes.append((now, value))
        while len(changes) > 1 and changes[1][0] <= now - self.seconds:
            changes.popleft()

    def then(self, key: Hashable) -> tuple[float, float] | None:
        """Return the value *seconds* ago, else the first one known, with its time."""
        changes = self._changes.get(key)
        return changes[0] if changes else None

    def increase(self, key: Hashable, value: float) -> float:
        """Return by how much *value* is above what it was; 0 if that is not known."""
        then = self.then(key)
        return 0.0 if then is None else value - then[1]

    def drop(self, key: Hashable) -> None:
        """Forget a figure."""
        self._changes.pop(key, None)

    def keep(self, keys: set[Hashable]) -> None:
        """Forget all figures but those."""
        for key in self._changes.keys() - keys:
            del self._changes[key]
