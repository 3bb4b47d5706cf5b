"""Why a rank of this node is late, as the page shows it; exporter.causes finds it out."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from exporter.causes.explain import IF_UNKNOWN, ROWS
from exporter.causes.model import UNKNOWN, Cause
from exporter.causes.units import unit_of
from exporter.evidence.late_causes import PLACEHOLDER
from rank_probe.judge.verdict import Change
from rank_probe.process.facts import number

# Returns the cause of a rank of a job, None if it is not known yet.
Causes = Callable[[str, int], Cause | None]
# Returns why a job is slower than before, by this node's own past; None if it cannot tell.
WhySlower = Callable[[str, Change], Cause | None]

# A cause that explains so much of the delay leaves nothing to guess at.
EXPLAINS_ALL: Final = 0.95
# What a rank may tell people to run: one of our own commands, with names and numbers in it.
_OURS: Final = re.compile(
    "|".join(
        PLACEHOLDER.sub(r"[\\w.:/-]+", re.escape(each))
        for each in (IF_UNKNOWN, *(row.first_action for row in ROWS))
    )
)


@dataclass(frozen=True, slots=True)
class CauseView(Cause):
    """A cause with the *unit* of its figure, empty without one; no *others* if it explains all."""

    unit: str = ""


@dataclass(frozen=True, slots=True)
class LineView:
    """A line of a late rank's code, and its *share* of the samples of the rank in *stage*."""

    stage: str
    place: str
    share: float


def view_cause(cause: Cause) -> CauseView:
    """Describe *cause*."""
    found = {each.name: getattr(cause, each.name) for each in fields(Cause)}
    others = () if cause.share >= EXPLAINS_ALL else cause.others
    return CauseView(**found | {"unit": unit_of(cause.figure), "others": others})


def told_cause(at: Mapping[str, str]) -> Cause | None:
    """Return the cause that another node's exporter reports in *at*; None if it reports none."""
    names = ("cause", "detail", "sentence", "first_action")
    said: dict[str, Any] = {name: at.get(name, "") for name in names}
    said["first_action"] *= bool(_OURS.fullmatch(said["first_action"]))
    return Cause(**said, share=min(number(at.get("share", "")), 1.0)) if "cause" in at else None


def cause_sentence(cause: CauseView) -> str:
    """Say what it is, or that it is not known."""
    if cause.cause == UNKNOWN:
        return f"Cause unknown: {cause.sentence}." if cause.sentence else "Cause unknown."
    return f"Cause: {cause.sentence}."
