"""What every target can do."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

# What everything begins with that we leave for people to read, and by which we know it again.
OURS: Final = "rankskew: "
# Schedulers cut longer ones, or refuse them.
LONGEST: Final = 300

# A line of the audit log.
Line = Mapping[str, Any]


class Target(Protocol):
    """A scheduler, or another program that is told. Each method raises Trouble if it cannot."""

    name: str

    def pools(self) -> Mapping[str, frozenset[str]]:
        """Return the nodes of each part of the cluster that may not become too small."""

    def holds(self, name: str) -> bool | None:
        """Say whether the node *name* is held by us; None if that cannot be asked."""

    def hold(self, line: Line) -> None:
        """Do what the *line* of the audit log says; again, if it has been done."""

    def free(self, line: Line) -> None:
        """Take back what hold() has done, and nothing else."""


def reason(line: Line) -> str:
    """Return what people read, on one line."""
    return " ".join(f"{OURS}{line['sentence']}".split())[:LONGEST]
