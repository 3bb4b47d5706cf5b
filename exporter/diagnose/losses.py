"""Losses for which no rank is to blame: rotating, unequal groups, communication."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from exporter.diagnose.model import Finding
from exporter.live.sentences import DOING

# The rules' threshold for each kind, and what it is without them (alerts/rules/thresholds.yaml).
LIMITS: Final = {
    "rotating": ("rotating_lost_ratio", 0.1),
    "group": ("group_lost_ratio", 0.1),
    "common": ("wait_share", 0.25),
}
Threshold = Callable[[str, float], float]


def usual(name: str, default: float) -> float:
    """Return the *default*, where no rules say otherwise."""
    return default


def loss_findings(
    kinds: Mapping[str, float],
    rotating: Mapping[str, float],
    ranks: float,
    threshold: Threshold = usual,
    group: str | None = None,
) -> Iterator[Finding]:
    """Yield a finding for each kind of loss above its threshold, a share of the *ranks*.

    *rotating* is that kind by stage; *group* is the heaviest peer group, if it is known.
    """
    for kind, (name, default) in LIMITS.items():
        gpus = kinds.get(kind, 0.0)
        if gpus > threshold(name, default) * ranks:
            stage = max(rotating, key=lambda each: rotating[each], default=None)
            yield Finding(
                kind,
                _sentence(kind, gpus, ranks, stage, group),
                gpus_lost=gpus,
                stage=stage if kind == "rotating" else None,
                kind=kind,
                peer_group=group if kind == "group" else None,
            )


def _sentence(kind: str, gpus: float, ranks: float, stage: str | None, group: str | None) -> str:
    cost = f"{gpus:.2f} of {ranks:.0f} GPUs"
    if kind == "rotating":
        where = f", mostly {DOING.get(stage, f'in {stage}')}" if stage else ""
        return f"Another rank is slow in each step{where}; {cost} wait for whichever it is."
    if kind == "group":
        who = f"Peer group {group}" if group else "A peer group"
        return f"{who} has more work than the others; {cost} wait for it."
    return f"All ranks wait for communication; that costs {cost}, whichever rank is late."
