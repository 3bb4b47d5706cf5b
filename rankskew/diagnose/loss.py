"""The loss of a job as a tree whose parts add up: by kind, then by late rank, then by stage."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from exporter.vocabulary.words import KINDS
from rank_probe.judge.verdict import MOST_LATE
from rankskew.diagnose.model import ByRank, Part

NOT_LISTED: Final = "ranks that are not listed"
# Less than this is no part worth a line.
SMALLEST_GPUS: Final = 0.005
# As many late ranks get a part each.
MOST_RANKS: Final = 10


def loss(kinds: Mapping[str, float], late: ByRank) -> Part:
    """Return all that is lost, by *kinds* and by the *late* ranks.

    The cost of a late rank is a mean since it became late, that of its kind a mean of the last
    minute; so the ranks share what their kind costs in proportion to their own costs.
    """
    in_order = [kind for kind in KINDS if kind in kinds] + sorted(kinds.keys() - KINDS.keys())
    parts = [
        Part(
            KINDS[kind].to if kind in KINDS else kind, kinds[kind], _ranks(kind, kinds[kind], late)
        )
        for kind in in_order
    ]
    return Part("lost", sum(kinds.values()), tuple(parts))


def _ranks(kind: str, gpus: float, late: ByRank) -> tuple[Part, ...]:
    named = sum(sum(stages.values()) for stages in late.values())
    if kind != "persistent" or named <= 0:
        return ()
    # Only the costliest are listed: the others have cost the rest.
    factor = gpus / named if len(late) < MOST_LATE else min(1.0, gpus / named)
    parts = [
        Part(
            f"rank {rank}",
            factor * sum(stages.values()),
            tuple(
                Part(stage, factor * lost)
                for stage, lost in sorted(stages.items(), key=lambda each: -each[1])
            ),
        )
        for rank, stages in late.items()
    ]
    parts.sort(key=lambda part: -part.gpus)
    if others := parts[MOST_RANKS:]:
        parts[MOST_RANKS:] = [Part(f"{len(others)} more ranks", sum(p.gpus for p in others))]
    rest = gpus - factor * named
    return (*parts, Part(NOT_LISTED, rest)) if rest >= SMALLEST_GPUS else tuple(parts)


def hundredths(part: Part) -> Part:
    """Return *part* rounded to hundredths so that the parts of each still add up to it."""
    return _rounded(part, round(part.gpus * 100))


def _rounded(part: Part, amount: int) -> Part:
    amounts = shared(amount, [each.gpus * 100 for each in part.parts]) if part.parts else []
    parts = (_rounded(each, own) for each, own in zip(part.parts, amounts, strict=True) if own)
    return Part(part.name, amount / 100, tuple(parts))


def shared(amount: int, weights: Sequence[float]) -> list[int]:
    """Return whole numbers that add up to *amount*, each next to its weight (largest remainder)."""
    floors = [math.floor(weight) for weight in weights]
    left = amount - sum(floors)
    by_rest = sorted(range(len(weights)), key=lambda n: floors[n] - weights[n])
    for place in range(abs(left)):
        which = by_rest[place % len(by_rest)] if left > 0 else by_rest[-1 - place % len(by_rest)]
        floors[which] += 1 if left > 0 else -1
    return floors
