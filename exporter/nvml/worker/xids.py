"""Counts the XID errors of one GPU: all of them, and the first few kinds by name."""

from collections import Counter
from enum import StrEnum
from typing import Final

# Each name is a series.
NAMED_KINDS: Final = 3
# Errors that programs cause, as listed in NVIDIA's k8s-device-plugin (health.go): a page fault in a
# program under development must not use up the names that a broken GPU needs.
OF_APPLICATIONS: Final = frozenset({13, 31, 43, 45, 68, 109})
NAMED_KINDS_OF_APPLICATIONS: Final = 1


class XidSource(StrEnum):
    """The source of the errors; never both, or each error would count twice."""

    KMSG = "kmsg"
    NVML = "nvml"


class XidCounts:
    """What one GPU has reported since the worker started."""

    def __init__(self) -> None:
        self.events = 0
        self._by_kind: Counter[int] = Counter()

    def add(self, kind: int) -> None:
        """Count one error; beyond the allowed number of names, only among all events."""
        self.events += 1
        if kind in self._by_kind or self._has_room(kind):
            self._by_kind[kind] += 1

    def by_kind(self) -> dict[str, int]:
        """Return the counts of the errors that have a name, by number."""
        return {str(kind): count for kind, count in self._by_kind.items()}

    def _has_room(self, kind: int) -> bool:
        if kind in OF_APPLICATIONS:
            named = len(self._by_kind.keys() & OF_APPLICATIONS)
            if named >= NAMED_KINDS_OF_APPLICATIONS:
                return False
        return len(self._by_kind) < NAMED_KINDS
