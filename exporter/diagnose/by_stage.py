"""What the stage of a late rank alone says of its cause, where nothing else is measured."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from exporter.diagnose.confidence import ENOUGH, UNKNOWN, Suspect
from exporter.diagnose.model import Figure

# What a stage points to if it has most of the cost, as in alerts/rules/cause.yaml.
POINTS_TO: Final = {
    "data": ("input", ""),
    "checkpoint": ("extra_duties", "checkpoint"),
    "eval": ("extra_duties", "eval"),
    "other": ("extra_duties", "other"),
}
# A stage that takes so much longer than the peers', relative to the largest excess, is told.
WORTH_TELLING: Final = 0.2


def suspects(gpus_by_stage: Mapping[str, float]) -> list[Suspect]:
    """Return the causes that the cost of a late rank *by stage* points to, the surest first."""
    whole = sum(gpus_by_stage.values())
    found = [
        Suspect(*POINTS_TO[stage], gpus / whole)
        for stage, gpus in gpus_by_stage.items()
        if stage in POINTS_TO and whole > 0 and gpus >= ENOUGH * whole
    ]
    return sorted(found, key=lambda each: -each.share)


def chosen(found: Sequence[Suspect]) -> Suspect:
    """Return the first of the suspects that explains enough, or that the cause is not known."""
    return next((each for each in found if each.share >= ENOUGH), Suspect(UNKNOWN))


def stage_figures(
    own: Mapping[str, float], peers: Sequence[Mapping[str, float]], beside: str = "its peers"
) -> tuple[Figure, ...]:
    """Return the stages in which *own* takes longer than the median of *peers*, seconds a step."""
    usual = {
        stage: median(each.get(stage, 0.0) for each in peers) if peers else 0.0 for stage in own
    }
    excess = {stage: own[stage] - usual[stage] for stage in own if stage != "sync"}
    largest = max(excess.values(), default=0.0)
    told = [s for s, more in excess.items() if more > 0 and more >= WORTH_TELLING * largest]
    return tuple(
        Figure(f"{stage}, a step", "seconds", own[stage], usual[stage], beside)
        for stage in sorted(told, key=lambda stage: -excess[stage])
    )
