"""Simulated probes' reports, with marks on everything that changes, to find it on the page."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final

from benchmarks.scale_hardware import FIRST_RANK, NODE, pid
from benchmarks.scale_job import (
    COMMUNICATION_SECONDS,
    FAULT_STAGE,
    FIRST_STEPS,
    STAGE_SHARES,
    SYNC,
    block_fields,
    join_fields,
)
from benchmarks.scale_job import fields as moving_fields
from benchmarks.scale_verdict import LATE_SECONDS
from rank_probe.snapshot import Snapshot
from rank_probe.verdict import LOST_KINDS, PERSISTENT, Late, Verdict

# A mark is at least this, a value that no reading has; or a name that each node replaces.
FIRST_MARK: Final = 800_000
JOB, WORLD_SIZE = "@job@", 999_983
# What belongs to no rank: the verdict, the GPUs and the node.
NO_RANK: Final = -1


class Marks:
    """Gives out numbers that can be found again on the page."""

    def __init__(self) -> None:
        self.meaning: list[tuple[int, str]] = []

    def __call__(self, rank: int, field: str) -> Any:
        self.meaning.append((rank, field))
        return FIRST_MARK + len(self.meaning) - 1 + 0.25

    def all_of(self, rank: int, names: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of Snapshot that *names* stand for."""
        found: dict[str, Any] = {}
        for name in names:
            field, _, key = name.partition(".")
            if key:
                found.setdefault(field, {})[key] = self(rank, name)
            else:
                found[field] = self(rank, name)
        return found


def verdict(index: int | None, marks: Marks) -> dict[str, Any]:
    """Return a marked verdict; *index* is the late rank's on this node, if it is here."""

    def marked(field: str, keys: Sequence[str]) -> dict[str, float]:
        return {key: marks(NO_RANK, f"{field}.{key}") for key in keys}

    late: tuple[Late, ...] = ()
    if index is not None:
        late = (
            Late(
                rank=FIRST_RANK + index,
                peer_group="all",
                stage=FAULT_STAGE,
                kind=PERSISTENT,
                ratio=marks(NO_RANK, "late.ratio"),
                gpus=marked("late.gpus", list(STAGE_SHARES)),
                since_seconds=LATE_SECONDS,
                steps=FIRST_STEPS,
                confidence=9.0,
            ),
        )
    said = Verdict(
        step=FIRST_STEPS,
        ranks={"all": WORLD_SIZE},
        step_seconds=marks(NO_RANK, "step_seconds"),
        slowdown=marks(NO_RANK, "slowdown"),
        gpus_lost=marked("gpus_lost", LOST_KINDS),
        rotating=marked("rotating", list(STAGE_SHARES)),
        late=late,
    )
    return asdict(said)  # Not to_json(), which shortens numbers to fewer digits than a mark has.


def snapshot(index: int, marks: Marks, told: dict[str, Any] | None) -> Snapshot:
    """Return the report of the rank at *index* of its node; *told* is the verdict, if any."""
    hidden = join_fields() if told is None else []
    names = [name for name in moving_fields() if name not in hidden]
    if told is None:
        names += block_fields()
    plain = Snapshot(
        job_id=JOB,
        peer_group="all",
        rank=FIRST_RANK + index,
        world_size=WORLD_SIZE,
        attempt=0,
        pid=pid(index),
        started_timestamp_seconds=1.0,
        sequence=1,
        heartbeat_timestamp_seconds=0.0,
        steps=0,
        stage_seconds={},
        busy_seconds=0.0,
        busy_seconds_squared=0.0,
        stage="backward",
        stage_elapsed_seconds=0.0,
        rank_info={
            "local_rank": str(index),
            "node_rank": NODE,
            "gpu_uuid": f"GPU-{NODE}-{index}",
            "dp": str(FIRST_RANK + index),
            "tp": "0",
            "pp": "0",
            "clock": "device",
            "source": "torchrun",
        },
        runtime_info={
            "torch": "2.13.0",
            "cuda": "13.0",
            "nccl": "2.28.3",
            "python": "3.11.7",
            "backend": "nccl",
            "probe": "0.1.0",
            "driver": "580.95",
            "env_hash": "5f1d7a84",
            "device_count": "8",
        },
        cuda_memory_reserved_bytes=70_123_456_789,
        cuda_memory_peak_bytes=69_234_567_890,
        cuda_alloc_retries=0,
        block_steps=64,
        block_seconds=dict.fromkeys(STAGE_SHARES, 0.1),
        lifecycle_seconds={"init": 21.4, "rendezvous": 8.2, "first_step": 64.1, "compile": 48.7},
    )
    known = {field.name for field in fields(Snapshot)}
    values = marks.all_of(index, names)
    if unknown := sorted(values.keys() - known):
        raise LookupError(f"a snapshot has no {', '.join(unknown)}")
    found = replace(plain, **values)
    # All ranks know their last block, and their waits in it.
    found.block_seconds[SYNC] = COMMUNICATION_SECONDS
    if told is None:
        return found
    return replace(found, join_coverage=1.0, verdict=told, verdict_age_seconds=1.0)
