"""How much counters have grown between two readings."""

from collections.abc import Mapping


class Growth:
    """Remembers counters by name. A counter that falls, or is new, has not grown.

    A counter that could not be read in between is new: its growth over the gap would be attributed
    to the time since the last reading.
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._each: dict[str, Mapping[str, float]] = {}

    def of(self, name: str, value: float | None) -> float | None:
        """Return by how much *name* has grown since the last call for it; None if unknown."""
        last = self._last.pop(name, None)
        if value is None:
            return None
        self._last[name] = value
        return None if last is None or value < last else value - last

    def of_each(self, name: str, values: Mapping[str, float] | None) -> dict[str, float]:
        """Return the same for each of several counters under one *name*, where known."""
        last, now = self._each.get(name, {}), dict(values or {})
        self._each[name] = now
        return {key: now[key] - last[key] for key in now if key in last and now[key] >= last[key]}
