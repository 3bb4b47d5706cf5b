"""Recorded runs: traces of synthetic jobs, in the shapes that real ones have."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

SHARES = {"optimizer": 0.1, "data": 0.1, "forward": 0.25, "backward": 0.5}


def record(
    path: Path,
    *,
    late: Callable[[int, int], float] = lambda rank, step: 0.0,
    stage: str = "backward",
    ranks: int = 8,
    steps: int = 400,
    step_seconds: float = 1.0,
    communication: float = 0.05,
    noise: float = 0.02,
    group_work: Sequence[float] = (1.0,),
    every_seconds: float | None = None,
    synced: bool = True,
) -> Path:
    """Write the trace of a job whose *rank* is *late* by a share of a step, in *stage*.

    With *every_seconds* the steps are samples, that far apart, and time_s is when each began; else
    they follow each other and time_s is when each ended. Two ranks share a node.
    """
    draw = random.Random(0)
    columns = [f"{name}_s" for name in dict.fromkeys((*SHARES, stage))] + ["sync_s"] * synced
    lines = [",".join(["job_id,rank,peer_group,step,time_s,node", *columns])]
    groups = [rank * len(group_work) // ranks for rank in range(ranks)]
    now = 0.0
    for step in range(steps):
        own = [
            {
                name: step_seconds * group_work[group] * share * max(0.5, draw.gauss(1, noise))
                for name, share in SHARES.items()
            }
            for group in groups
        ]
        for rank, stages in enumerate(own):
            stages[stage] = stages.get(stage, 0.0) + late(rank, step) * step_seconds
        slowest = max(sum(stages.values()) for stages in own)
        length = slowest + communication * step_seconds
        time = now if every_seconds else now + length
        for rank, stages in enumerate(own):
            wait = [length - sum(stages.values())] * synced
            cells = [f"{value:.6f}" for value in [time, *stages.values(), *wait]]
            cells.insert(1, str(rank // 2))
            lines.append(f"j,{rank},pp{groups[rank]},{step},{','.join(cells)}")
        now += every_seconds or length
    path.write_text("\n".join([*lines, ""]))
    return path
