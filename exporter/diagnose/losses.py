"""Losses for which no rank is to blame: rotating, unequal groups, communication."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from exporter.diagnose.model import Finding
from exporter.live.sentences import DOING

# The threshold of each kind.
LIMITS: Final = {
    "rotating": "rotating_lost_ratio",
    "group": "group_lost_ratio",
    "common": "wait_share",
}


def loss_findings(
    kinds: Mapping[str, float],
    rotating: Mapping[str, float],
    ranks: float,
    threshold: Callable[[str], float],
) -> Iterator[Finding]:
    """Yield a finding for each kind of loss above its threshold, a share of the *ranks*.

    *rotating* is that kind by stage.
    """
    for kind, name in LIMITS.items():
        gpus = kinds.get(kind, 0.0)
        if gpus > threshold(name) * ranks:
            stage = max(rotating, key=lambda each: rotating[each], default=None)
            yield Finding(
                kind,
                _sentence(kind, gpus, ranks, stage),
                gpus_lost=gpus,
                stage=stage if kind == "rotating" else None,
                kind=kind,
            )


def _sentence(kind: str, gpus: float, ranks: float, stage: str | None) -> str:
    cost = f"{gpus:.2f} of {ranks:.0f} GPUs"
    if kind == "rotating":
        where = f", mostly {DOING.get(stage, f'in {stage}')}" if stage else ""
        return f"Another rank is slow in each step{where}; {cost} wait for whichever it is."
    if kind == "group":
        return f"A peer group has more work than the others; {cost} wait for it."
    return f"All ranks wait for communication; that costs {cost}, whichever rank is late."
