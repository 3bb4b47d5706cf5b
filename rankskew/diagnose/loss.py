"""The loss of a job as a tree whose parts add up: by kind, then by late rank, then by stage."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from exporter.vocabulary.words import KINDS
from rank_probe.judge.verdict import MOST_LATE
from rankskew.render import Section

# Less than this is no part worth a line.
SMALLEST_GPUS: Final = 0.005
# As many late ranks get a part each.
MOST_RANKS: Final = 10


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the loss, in GPUs that do nothing but wait; its *parts* add up to *gpus*."""

    name: str
    gpus: float
    parts: tuple["Part", ...] = ()


def loss(kinds: Mapping[str, float], late: Mapping[int, Mapping[str, float]]) -> Part:
    """Return all that is lost, by *kinds*, and to *late* ranks by stage.

    The cost of a late rank is a mean since it became late, that of its kind a mean of the last
    minute; so the ranks share what their kind costs in proportion to their own costs.
    """
    in_order = [kind for kind in KINDS if kind in kinds] + sorted(kinds.keys() - KINDS.keys())
    parts = [
        Part(
            KINDS[kind].to if kind in KINDS else kind,
            kinds[kind],
            _ranks(kinds[kind], late) if kind == "persistent" else (),
        )
        for kind in in_order
    ]
    return Part("lost", sum(kinds.values()), tuple(parts))


def _ranks(gpus: float, late: Mapping[int, Mapping[str, float]]) -> tuple[Part, ...]:
    named = sum(sum(stages.values()) for stages in late.values())
    if named <= 0:
        return ()
    # Only the costliest are listed: the others have cost the rest.
    factor = gpus / named if len(late) < MOST_LATE else min(1.0, gpus / named)
    parts = []
    for rank, stages in late.items():
        costliest = sorted(stages.items(), key=lambda each: -each[1])
        of_stages = tuple(Part(stage, factor * lost) for stage, lost in costliest)
        parts.append(Part(f"rank {rank}", factor * sum(stages.values()), of_stages))
    parts.sort(key=lambda part: -part.gpus)
    rest = gpus - sum(part.gpus for part in parts[:MOST_RANKS])
    others = (Part("other ranks", rest),) if rest >= SMALLEST_GPUS else ()
    return (*parts[:MOST_RANKS], *others)


def loss_section(title: str, whole: Part) -> Section:
    """Return the parts of *whole* as a table."""
    return Section(title, names=(">GPUs", "Lost"), rows=list(_rows(whole)))


def _rows(part: Part, indent: str = "") -> Iterator[tuple[str, str]]:
    for each in part.parts:
        if each.gpus >= SMALLEST_GPUS:
            yield f"{each.gpus:.2f}", f"{indent}{each.name}"
            yield from _rows(each, f"{indent}  ")
