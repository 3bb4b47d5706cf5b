"""Why a rank of this node is late, as the page shows it; exporter.causes finds it out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from exporter.causes.model import UNKNOWN, Cause, Guess
from exporter.causes.units import unit_of
from rank_probe.judge.verdict import Change
from rank_probe.process.facts import number

# Returns the cause of a rank of a job, None if it is not known yet.
Causes = Callable[[str, int], Cause | None]
# Returns why a job is slower than before, by this node's own past; None if it cannot tell.
WhySlower = Callable[[str, Change], Cause | None]


# A cause that explains so much of the delay leaves nothing to guess at.
EXPLAINS_ALL: Final = 0.95


@dataclass(frozen=True, slots=True)
class CauseView:
    """A cause with the *figure* that shows it, *value* of the rank and *peers_value*, in *unit*.

    *share* (0 to 1) is how much of the rank's excess it accounts for; *others* are the next best
    guesses, none if it accounts for nearly all. Without a figure, *figure* and *unit* are empty.
    """

    cause: str
    detail: str
    share: float
    sentence: str
    first_action: str
    figure: str
    value: float | None
    peers_value: float | None
    unit: str
    others: list[Guess]


@dataclass(frozen=True, slots=True)
class LineView:
    """A line of a late rank's code, and its *share* of the samples of the rank in *stage*."""

    stage: str
    place: str
    share: float


def view_cause(cause: Cause) -> CauseView:
    """Describe *cause*."""
    return CauseView(
        cause=cause.cause,
        detail=cause.detail,
        share=cause.share,
        sentence=cause.sentence,
        first_action=cause.first_action,
        figure=cause.figure,
        value=cause.value,
        peers_value=cause.peers_value,
        unit=unit_of(cause.figure),
        others=[] if cause.share >= EXPLAINS_ALL else list(cause.others),
    )


def told_cause(at: Mapping[str, str]) -> Cause | None:
    """Return the cause that the exporter of another node tells in *at*; None if it tells none."""
    names = ("cause", "detail", "sentence", "first_action")
    said: dict[str, Any] = {name: at.get(name, "") for name in names}
    return Cause(**said, share=min(number(at.get("share", "")), 1.0)) if "cause" in at else None


def cause_sentence(cause: CauseView) -> str:
    """Say what it is, or that it is not known."""
    if cause.cause == UNKNOWN:
        return f"Cause unknown: {cause.sentence}." if cause.sentence else "Cause unknown."
    return f"Cause: {cause.sentence}."
