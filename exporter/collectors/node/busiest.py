"""Which few of many devices to show: those that have been the busiest of late."""

from collections.abc import Mapping

# Of what a device was busy, so much still counts at the next look: half of it after six looks.
KEPT = 0.9
# A device that is shown stays until another one is so much busier: equal ones do not take turns.
STAYS = 1.5


class Busiest:
    """Chooses at most *most* devices by how their busy time grows from look to look."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._recent: dict[str, float] = {}
        self._last: Mapping[str, float] = {}
        self._chosen: frozenset[str] = frozenset()

    def of(self, busy: Mapping[str, float]) -> list[str]:
        """Return those of *busy*, seconds in total by device, to show now, in order of name.

        At the first look these are the ones with most in total; a device that was never busy is
        not among them.
        """
        self._recent = {
            device: KEPT * self._recent.get(device, 0.0)
            + max(total - self._last.get(device, total), 0.0)
            for device, total in busy.items()
        }
        self._last = dict(busy)

        def rank(device: str) -> tuple[float, bool, float]:
            shown = device in self._chosen
            return self._recent[device] * (STAYS if shown else 1.0), shown, busy[device]

        ranked = sorted((device for device in busy if busy[device] > 0), key=rank, reverse=True)
        self._chosen = frozenset(ranked[: self._most])
        return sorted(self._chosen)
