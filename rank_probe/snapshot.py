"""What a rank tells its node's exporter: its whole cumulative state, never a difference.

Losing, repeating or reordering a snapshot is harmless, because each one replaces the last.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Final

SCHEMA: Final = 1

# Where snapshots are posted, on the exporter's ingest listener.
SNAPSHOT_PATH: Final = "/v1/snapshots"

RANK_INFO_LABELS: Final = (
    "local_rank",
    "node_rank",
    "world_size",
    "gpu_uuid",
    "dp",
    "tp",
    "pp",
    "clock",
    "attempt",
    "source",
)
RUNTIME_INFO_LABELS: Final = ("torch", "cuda", "nccl", "python", "backend", "probe")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of one rank since its process started the probe.

    Times are seconds; timestamps are Unix seconds on the node's own clock. Counters are
    committed at the release, so they hold whole steps only; *stage_seconds* has a key only for
    stages that occurred. *stage* and *stage_elapsed_seconds* are where the rank is now.
    None means "no reading".
    """

    job_id: str
    peer_group: str
    rank: int
    world_size: int
    attempt: int
    pid: int
    started_timestamp_seconds: float
    sequence: int
    heartbeat_timestamp_seconds: float
    steps: int
    stage_seconds: dict[str, float]
    busy_seconds: float
    busy_seconds_squared: float
    stage: str
    stage_elapsed_seconds: float
    finished: bool = False
    sync_floor_seconds: float | None = None
    last_step_timestamp_seconds: float | None = None
    probe_errors: int = 0
    push_failures: int = 0
    rank_info: dict[str, str] = field(default_factory=dict)
    runtime_info: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    def to_json(self) -> bytes:
        """Return the body of a push, UTF-8 JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False).encode()
