"""What figures were some time ago, and sums of counters that survive the reset of one of them."""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any, Final

# Scrapers may ask more often than this: what they see in between is not worth remembering.
LOOK_SECONDS: Final = 5.0


class Past:
    """Each figure's values over the last *seconds*, by a key of the caller's.

    Times are in seconds of any one clock. A figure that does not change takes a single entry.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._changes: dict[Hashable, deque[tuple[float, float]]] = {}

    def see(self, key: Hashable, value: float, now: float) -> None:
        """Remember *value*."""
        changes = self._changes.setdefault(key, deque())
        if not changes or changes[-1][1] != value:
            changes.append((now, value))
        while len(changes) > 1 and changes[1][0] <= now - self.seconds:
            changes.popleft()

    def count(self, key: Hashable, total: float, now: float, first: float | None = None) -> None:
        """Remember a counter's *total*; a counter that falls was reset, and keeps its growth.

        It begins at *first*, else at the first total seen, because nobody knows when that grew.
        """
        changes = self._changes.get(key)
        begins = total if first is None else first
        if changes is None:
            self.see(key, begins, now)
        elif total < changes[-1][1]:
            self._begin_again(changes, begins)
        self.see(key, total, now)

    def begin_again(self) -> None:
        """Reset all counters to 0 now, even if their next totals are no lower than before."""
        for changes in self._changes.values():
            self._begin_again(changes, 0.0)

    @staticmethod
    def _begin_again(changes: deque[tuple[float, float]], at: float) -> None:
        """Shift the past values, so that the counter is now *at* this value."""
        by = at - changes[-1][1]
        for number, (when, value) in enumerate(changes):
            changes[number] = (when, value + by)

    def then(self, key: Hashable) -> tuple[float, float] | None:
        """Return the value *seconds* ago, else the first one known, with its time."""
        changes = self._changes.get(key)
        return changes[0] if changes else None

    def changed(self, key: Hashable) -> list[float]:
        """Return the times at which it changed; the first known value is not a change."""
        return [when for when, _ in self._changes.get(key, ())][1:]

    def increase(self, key: Hashable, value: float | None = None) -> float:
        """Return by how much *value*, else the last one, exceeds the past one; 0 if unknown."""
        changes = self._changes.get(key)
        if not changes:
            return 0.0
        return (changes[-1][1] if value is None else value) - changes[0][1]

    def drop(self, key: Hashable) -> None:
        """Forget a figure."""
        self._changes.pop(key, None)

    def keep(self, keys: set[Hashable]) -> None:
        """Forget all figures but those."""
        for key in self._changes.keys() - keys:
            del self._changes[key]


class Sum:
    """Adds up counters, and goes on if one of them is missing for a while or restarts.

    Their plain sum would fall in these cases, which rate() takes for a reset of the whole sum.
    """

    def __init__(self) -> None:
        self.total = 0
        self._last: dict[object, int] = {}

    def add(self, counts: Mapping[Any, int]) -> int:
        """Take the counters that can be read now, under any names, and return the sum of all."""
        for name, count in counts.items():
            last = self._last.get(name, 0)
            self.total += count - last if count >= last else count
            self._last[name] = count
        return self.total
