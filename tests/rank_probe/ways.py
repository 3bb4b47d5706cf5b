"""Each way to train, with a delay in each stage in turn: what the probes of its ranks count.

For each, real gloo ranks run a small training that computes by sleeping, one job for each place of
the delay. The figures are the last ones that each rank's probe pushed.
"""

import os
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rank_probe.wire.stages import STAGES
from tests.rank_probe.jobs.parallel_arms import DELAY, PLACES
from tests.rank_probe.launch import PACKAGE, Ranks, run

STEPS = 12


@dataclass(frozen=True)
class Arm:
    """A way to train: Python's arguments, to which the names of its jobs are added.

    A job's name is *prefix* and the place of the delay. *peers* are the ranks with as much work as
    the late one, which is the last of them. *ends_released* means that the ranks meet once more
    after the last step, so that all of it is counted. The arm is skipped if *package*, which our
    requirements need not name, is not installed. *places* are its stages.
    """

    name: str
    command: tuple[str, ...]
    peers: tuple[int, ...] = (0, 1)
    prefix: str = ""
    ends_released: bool = False
    package: str = "torch"
    places: tuple[str, ...] = PLACES


def torchrun(ranks: int, job: str, *arguments: str) -> tuple[str, ...]:
    """Return Python's arguments to run *job* of tests/rank_probe/jobs on that many ranks."""
    launcher = ("-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "-m")
    return (*launcher, f"{PACKAGE}.{job}", *arguments)


def loop(title: str, name: str, ranks: int = 2, peers: tuple[int, ...] = (), **arm: Any) -> Arm:
    """Return an arm of loops_job.py; without *peers* all *ranks* are."""
    peers = peers or tuple(range(ranks))
    command = torchrun(ranks, "loops_job", "STEPS", str(peers[-1]))
    return Arm(title, command, peers, prefix=f"{name}-", **arm)


MEGATRON = torchrun(2, "megatron_job", "STEPS", "1")
ARMS = (
    loop("DDP", "ddp", 4),
    loop("DDP + accumulation", "ddp_accumulation", 4),
    loop("FSDP1", "fsdp1", 4),
    loop("FSDP2", "fsdp2", 4),
    loop("FSDP2 + accumulation", "fsdp2_accumulation", 4),
    loop("tensor parallel", "tensor_parallel", 4),
    loop("pipeline GPipe", "pipeline_gpipe", 2),
    loop("pipeline 1F1B x DDP", "pipeline_1f1b", 4, (2, 3)),
    loop("pipeline 1F1B, interleaved", "pipeline_interleaved", 2),
    loop("torch.compile (inductor)", "compiled", 2),
    loop("accumulation that varies", "varying_accumulation"),
    loop("distillation", "distillation"),
    loop("several loaders", "several_loaders"),
    loop("optimizers in backward", "optimizer_in_backward", ends_released=True),
    loop("DCP async_save each step", "async_save", places=(*PLACES, "checkpoint")),
    loop("LocalSGD", "local_sgd", ends_released=True),
    loop("DiLoCo", "diloco", ends_released=True),
    loop("PPO-shaped", "rollouts", places=PLACES[1:], ends_released=True),
    loop("GRPO-shaped", "prompted_rollouts"),
    loop("torchtitan-shaped", "titan_shaped"),
    Arm("Megatron-core", MEGATRON, prefix="megatron-", package="megatron.core"),
    Arm("TRL GRPO", torchrun(2, "transformers_job"), prefix="grpo-", package="trl"),
    Arm("Lightning", torchrun(2, "lightning_job", "lightning.pytorch")),
    Arm("Hugging Face Trainer", torchrun(2, "transformers_job")),
    Arm("Accelerate", torchrun(2, "accelerate_job")),
    Arm("Ray Train", ("-m", f"{PACKAGE}.ray_train_job", "FOLDER")),
)


def per_step(snapshot: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the milliseconds per step that *snapshot* counts in each stage."""
    seconds: Mapping[str, float] = snapshot["stage_seconds"]
    return {stage: 1e3 * seconds.get(stage, 0.0) / snapshot["steps"] for stage in STAGES}


def verdict(arm: Arm, place: str, job: Ranks) -> dict[str, Any]:
    """Name the rank that waits least, and the stage in which it is furthest ahead of its peers."""
    ranks = {rank: per_step(snapshot) for rank, snapshot in job.items()}
    late = min(ranks, key=lambda rank: ranks[rank]["sync"])
    peers = [ranks[rank] for rank in arm.peers if rank != late]
    ahead = {
        stage: ranks[late][stage] - statistics.median(peer[stage] for peer in peers)
        for stage in STAGES
        if stage != "sync"
    }
    stage = max(ahead, key=lambda name: ahead[name])
    steps = job[late]["steps"]
    # What follows the last release is in no whole step.
    lost = place in ("optimizer", "other") and not arm.ends_released
    return {
        "arm": arm.name,
        "delay on rank": arm.peers[-1],
        "in": place,
        "waits least": late,
        "furthest ahead in": stage,
        "by, ms": ahead[stage],
        "planted, ms": 1e3 * DELAY * ((steps - lost) / steps),
        "its wait, ms": ranks[late]["sync"],
        "wait of its peers, ms": statistics.median(peer["sync"] for peer in peers),
        "named": late == arm.peers[-1] and stage == place,
    }


def measure(arm: Arm, steps: int = STEPS) -> list[dict[str, Any]]:
    """Return a row for each place of the delay in *arm*."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHECKPOINTS"] = folder  # Where the frameworks' jobs write.
        words = {"STEPS": str(steps), "FOLDER": folder}
        # The first job of a process also pays for torch's one-time work.
        cases = [arm.prefix + place for place in ("warm-up", *arm.places)]
        jobs = run(Path(folder), [*(words.get(word, word) for word in arm.command), *cases])
    return [verdict(arm, place, jobs[arm.prefix + place]) for place in arm.places]
