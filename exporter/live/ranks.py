"""One rank as the live page shows it: where it runs, and where its time goes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from exporter.events import last_event
from exporter.live.causes import LineView
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankOnGpu
from exporter.ranks.jobs import step_age_seconds
from exporter.ranks.store import HeldRank
from rank_probe.wire.snapshot import LEVEL_OFF

# Variables with the name of torch's dumps, without the rank at its end; the second is older.
DUMP_FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
SIMPLE_PATH: Final = re.compile(r"/[A-Za-z0-9._/+@%-]*")


@dataclass(frozen=True, slots=True)
class EventView:
    """What a rank's process last began or has done, and how long ago; *seconds* it took."""

    event: str
    state: str
    age_seconds: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank as the page draws it; means are per step over the window, None before it is full.

    *pid* is the node's id for its process if it was found on a GPU, else the probe's own, which in
    a container may differ. *gpu* is NVML's index.
    *dumps* is where torch's flight recorder writes, if the process's environment names it. *state*,
    one of THREAD_STATES, is what its thread mostly does; known for a late or a stuck rank.
    """

    rank: int
    local_rank: str | None
    gpu_uuid: str | None
    peer_group: str
    steps: int = 0
    stage_seconds: dict[str, float] | None = None
    step_seconds: float | None = None
    wait_seconds: float | None = None
    stage: str = ""
    stage_elapsed_seconds: float = 0.0
    heartbeat_age_seconds: float = 0.0
    last_step_age_seconds: float | None = None
    silent: bool = False
    finished: bool = False
    level: str = LEVEL_OFF
    late_lines: list[LineView] = field(default_factory=list)
    pid: int | None = None
    host: str = ""
    gpu: int | None = None
    last_event: EventView | None = None
    dumps: str | None = None
    state: str = ""


def view_rank(
    rank: HeldRank,
    stage_seconds: dict[str, float] | None,
    now: float,
    host: str = "",
    place: RankOnGpu | None = None,
) -> RankView:
    """Describe *rank* at *now*, in seconds of the store's clock; *place* is its GPU, if known."""
    snapshot = rank.snapshot
    process = None if place is None else place.process
    return RankView(
        rank=snapshot.rank,
        local_rank=snapshot.rank_info.get("local_rank") or (place and place.local_rank) or None,
        gpu_uuid=snapshot.rank_info.get("gpu_uuid") or (place and place.gpu_uuid) or None,
        peer_group=snapshot.peer_group,
        steps=snapshot.steps,
        stage_seconds=stage_seconds,
        step_seconds=sum(stage_seconds.values()) if stage_seconds else None,
        wait_seconds=stage_seconds.get("sync") if stage_seconds else None,
        stage=snapshot.stage,
        stage_elapsed_seconds=snapshot.stage_elapsed_seconds,
        heartbeat_age_seconds=now - rank.received_seconds,
        last_step_age_seconds=step_age_seconds(rank, now),
        silent=rank.is_silent(now),
        finished=snapshot.finished,
        level=snapshot.level,
        late_lines=[LineView(**each) for each in snapshot.late_lines],
        pid=snapshot.pid if process is None else process.pid,
        host=host,
        gpu=place.gpu.index if place is not None and place.gpu is not None else None,
        last_event=_view_event(rank, now),
        dumps=None if process is None else _dumps(process),
        state=next((each["state"] for each in snapshot.thread_states), ""),
    )


def _dumps(process: Process) -> str | None:
    """Return the directory of the dumps, unless its name could not be copied into a shell."""
    environment = process.environment or {}
    file = next((environment[name] for name in DUMP_FILES if name in environment), "")
    directory = file.rpartition("/")[0]
    return directory if SIMPLE_PATH.fullmatch(directory) else None


def _view_event(rank: HeldRank, now: float) -> EventView | None:
    last = last_event(rank.snapshot)
    if last is None:
        return None
    # Both times are of the node's wall clock, so its error cancels out.
    ago = rank.snapshot.heartbeat_timestamp_seconds - last.timestamp_seconds
    age = max(0.0, ago) + now - rank.received_seconds
    return EventView(last.event, last.state, age, last.seconds)


def view_unprobed(rank: RankOnGpu, host: str) -> RankView:
    """Describe a rank that is known only from its process on a GPU."""
    return RankView(
        rank=rank.rank,
        local_rank=rank.local_rank or None,
        gpu_uuid=rank.gpu_uuid or None,
        peer_group=rank.peer_group,
        pid=None if rank.process is None else rank.process.pid,
        host=host,
        gpu=None if rank.gpu is None else rank.gpu.index,
    )


def lines_sentence(rank: int, lines: Sequence[LineView]) -> str:
    """Say in which *lines* of its code a late *rank* is found most, as they are sorted."""
    parts = [
        f"{stage}: {', '.join(f'{line.share:.0%} in {line.place}' for line in those)}"
        for stage, those in groupby(lines, key=lambda line: line.stage)
    ]
    return f"Code of rank {rank}: {'; '.join(parts)}."
