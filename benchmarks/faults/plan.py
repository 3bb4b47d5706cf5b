"""What is killed and when: random, but the same for the same seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# The parts of each round, in random order; a rank is drawn among all.
ROUND: Final = ("exporter", "NVML child", "Prometheus", "Alertmanager", "rank")
TWICE_WITHIN_SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How many kills, with which seed, and how long all is well between two, on average.

    *follows* is the chance that another kill comes while the part killed before may be starting.
    """

    kills: int = 200
    seed: int = 1
    calm_seconds: float = 1.5
    follows: float = 0.35
    ranks: int = 4


@dataclass(frozen=True, slots=True)
class Kill:
    """What to kill *after_seconds*: of calm or, if it *follows*, since the kill before it."""

    part: str
    after_seconds: float
    follows: bool


def kills(plan: Plan) -> Iterator[Kill]:
    """Yield every kill of *plan*."""
    draw = random.Random(plan.seed)
    names: list[str] = []
    may_follow = False
    for _ in range(plan.kills):
        names = names or draw.sample(ROUND, len(ROUND))
        name = names.pop()
        part = f"rank {draw.randrange(plan.ranks)}" if name == "rank" else name
        follows = may_follow and draw.random() < plan.follows
        # Not a third: what is checked in between is that all parts come back.
        may_follow = not follows
        seconds = draw.uniform(0, TWICE_WITHIN_SECONDS if follows else 2 * plan.calm_seconds)
        yield Kill(part, seconds, follows)
