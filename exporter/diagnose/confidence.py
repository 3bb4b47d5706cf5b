"""How sure a cause is: plain rules on what is known of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exporter.advice import MEASURED, NODE, OWN, STAGE, advice
from exporter.diagnose.model import HIGH, LOW, MEDIUM

# A cause must account for this share of the lateness: with less, the rest would be the cause.
ENOUGH: Final = 0.5
# These are evidence of their own; a fact of the node or the stage alone is shared by others.
STRONG: Final = (MEASURED, OWN)
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A cause for which there is evidence, with the *share* of the lateness that it explains."""

    cause: str
    detail: str = ""
    share: float = 1.0

    @property
    def known_by(self) -> str:
        """Return how it is known, one of advice.KNOWN_BY; a detail not listed is a mere hint."""
        entry = advice().get(self.cause)
        return STAGE if entry is None else entry.known_by.get(self.detail, STAGE)

    @property
    def is_strong(self) -> bool:
        """Say whether it is a measured amount or a fact of its own that explains half or more."""
        return self.known_by in STRONG and self.share >= ENOUGH


def confidence(chosen: Suspect, suspects: Sequence[Suspect]) -> tuple[str, str]:
    """Return how sure it is that *chosen* of the *suspects* is the cause, and why."""
    if chosen.cause == UNKNOWN:
        return LOW, "nothing that is measured explains it, only the stage is known"
    rivals = [each for each in suspects if each.cause != chosen.cause and each.is_strong]
    how = f"explains {chosen.share:.0%} of its lateness"
    if chosen.is_strong:
        what = "a measured amount" if chosen.known_by == MEASURED else "a fact of its own"
        if not rivals:
            return HIGH, f"{what} {how}"
        names = " and ".join(sorted({advice()[each.cause].short for each in rivals}))
        return MEDIUM, f"{what} {how}, but so does another: {names}"
    if chosen.known_by == NODE:
        return MEDIUM, f"a fact of its whole node {how}"
    return LOW, "only the stage in which it is late points to it"
