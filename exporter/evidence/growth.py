"""How much counters have grown between two readings."""

from collections.abc import Mapping


class Growth:
    """Remembers counters by name. A counter that falls, or is new, has not grown."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def of(self, name: str, value: float | None) -> float | None:
        """Return by how much it has grown since it was last asked for; None if unknown."""
        last = self._last.get(name)
        if value is None:
            return None  # Once it can be read again, it goes on from where it was.
        self._last[name] = value
        return None if last is None or value < last else value - last

    def of_each(self, name: str, values: Mapping[str, float] | None) -> dict[str, float]:
        """Return the same for each of several counters under one *name*, where known."""
        grown = {key: self.of(f"{name}:{key}", each) for key, each in (values or {}).items()}
        return {key: each for key, each in grown.items() if each is not None}
