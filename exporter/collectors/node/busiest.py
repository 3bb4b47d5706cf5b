"""Which one of many devices to show: the one that has been the busiest of late."""

from collections.abc import Mapping

# Of what a device was busy, so much still counts at the next look: half of it after six looks.
KEPT = 0.9
# The device that is shown stays until another one is so much busier: equal ones do not take turns.
STAYS = 1.5


class Busiest:
    """Chooses a device by how its busy time grows from look to look."""

    def __init__(self) -> None:
        self._recent: dict[str, float] = {}
        self._last: Mapping[str, float] = {}
        self._chosen: str | None = None

    def of(self, busy: Mapping[str, float]) -> str | None:
        """Return the one of *busy*, seconds in total by device, to show now.

        At the first look it is the one with most in total. None if none was ever busy.
        """
        self._recent = {
            device: KEPT * self._recent.get(device, 0.0)
            + max(total - self._last.get(device, total), 0.0)
            for device, total in busy.items()
        }
        self._last = dict(busy)

        def rank(device: str) -> tuple[float, bool, float]:
            shown = device == self._chosen
            return self._recent[device] * (STAYS if shown else 1.0), shown, busy[device]

        used = (device for device in busy if busy[device] > 0)
        self._chosen = max(used, key=rank, default=None)
        return self._chosen
