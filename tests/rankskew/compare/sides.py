"""Sides with known step times, for tests."""

import random
from collections.abc import Mapping
from typing import Any

from rankskew.compare.comparison import BLOCKS, LateRankCost, Side, StepBlock


def side(
    step_seconds: float = 0.5,
    noise: float = 0.01,
    steps: int = 400,
    blocks: int = BLOCKS,
    ranks: int = 8,
    seed: int = 1,
    stages: Mapping[str, float] | None = None,
    lost_gpus: float | None = None,
    tokens_a_step: float | None = None,
    samples_a_step: float | None = None,
    **more: Any,
) -> Side:
    """Return a side whose blocks vary by *noise*, a share, each in its own way."""
    draw = random.Random(seed)
    found = []
    for _ in range(blocks):
        each = steps / blocks
        seconds = each * step_seconds * (1 + draw.gauss(0, noise))
        found.append(
            StepBlock(
                steps=each,
                seconds=seconds,
                stages={name: each * value for name, value in (stages or {}).items()},
                lost=None if lost_gpus is None else lost_gpus * seconds,
                kinds={} if lost_gpus is None else {"persistent": lost_gpus * seconds},
                tokens=None if tokens_a_step is None else tokens_a_step * each,
                samples=None if samples_a_step is None else samples_a_step * each,
            )
        )
    known: dict[str, Any] = {"what": "Before (steps 1 to 2)", "job_id": "llama", "late": []}
    return Side(begin=0.0, end=1.0, ranks=ranks, blocks=found, **(known | more))


def late(
    rank: int, gpus_lost: float, stage: str = "data", kind: str = "persistent"
) -> LateRankCost:
    """Return a late rank."""
    return LateRankCost(rank, "all", "node0", stage, kind, gpus_lost)
