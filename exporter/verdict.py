"""What the live page says of a job: one state and one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rank_probe.snapshot import LEVEL_OFF, Snapshot

# Ten missed pushes.
SILENT_SECONDS: Final = 10.0
# A job stands still when no rank has ended a step for this long and for this many steps' time.
STALLED_SECONDS: Final = 30.0
STALLED_STEPS: Final = 10.0
# Above this share of a step the wait that all ranks have in common is worth a word.
COMMON_WAIT_RATIO: Final = 0.25

REASONS: Final = {
    "off": "the probe of a rank here is turned off; rankskew control JOB_ID stages turns it on",
    "warming_up": "each rank must first finish a few steps while this exporter watches",
    "single_rank": "only one rank runs on this node, so it has no peer to be compared with",
    "no_sync": "no wait in collectives was measured, so a rank that waits looks like a late one",
    "no_busy_time": "a rank reports steps without any time of its own",
}


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank as the page draws it; means are per step over the window, None before it is full."""

    rank: int
    local_rank: str | None
    gpu_uuid: str | None
    peer_group: str
    steps: int
    stage_seconds: dict[str, float] | None
    step_seconds: float | None
    wait_seconds: float | None
    stage: str
    stage_elapsed_seconds: float
    heartbeat_age_seconds: float
    last_step_age_seconds: float | None
    silent: bool
    finished: bool
    level: str


@dataclass(frozen=True, slots=True)
class LateView:
    """A late rank, the GPUs it keeps waiting, and for how long it has been named."""

    rank: int
    stage: str
    excess_seconds: float
    gpus_lost: float
    late_for_seconds: float


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """*state*: finished, silent, stalled, not_judgeable, late or even. *sentence* is for people."""

    state: str
    sentence: str
    reason: str | None = None
    late: list[LateView] = field(default_factory=list)


def view_rank(
    snapshot: Snapshot,
    stage_seconds: dict[str, float] | None,
    silent_seconds: float,
    timestamp: float,
) -> RankView:
    """Describe a rank at *timestamp* (Unix), whose last *snapshot* came *silent_seconds* ago."""
    last_step = snapshot.last_step_timestamp_seconds
    return RankView(
        rank=snapshot.rank,
        local_rank=snapshot.rank_info.get("local_rank"),
        gpu_uuid=snapshot.rank_info.get("gpu_uuid"),
        peer_group=snapshot.peer_group,
        steps=snapshot.steps,
        stage_seconds=stage_seconds,
        step_seconds=sum(stage_seconds.values()) if stage_seconds else None,
        wait_seconds=stage_seconds.get("sync") if stage_seconds else None,
        stage=snapshot.stage,
        stage_elapsed_seconds=snapshot.stage_elapsed_seconds,
        heartbeat_age_seconds=max(0.0, timestamp - snapshot.heartbeat_timestamp_seconds),
        last_step_age_seconds=None if last_step is None else max(0.0, timestamp - last_step),
        silent=not snapshot.finished and silent_seconds > SILENT_SECONDS,
        finished=snapshot.finished,
        level=snapshot.level,
    )


def job_verdict(
    ranks: Sequence[RankView], world_size: int, late: Sequence[LateView], reason: str | None
) -> JobVerdict:
    """Say the most urgent thing that is true of *ranks*, the ones of this node."""
    running = [rank for rank in ranks if not rank.finished]
    if not running:
        return JobVerdict("finished", f"Finished after {max(r.steps for r in ranks)} steps.")
    if all(rank.silent for rank in running):
        return JobVerdict("silent", _silent(running))
    if any(rank.level == LEVEL_OFF for rank in running):  # It counts no steps, and hangs nobody.
        reason = "off"
    elif stalled := _stalled(running):
        return JobVerdict("stalled", stalled)
    if reason is not None:
        return JobVerdict("not_judgeable", f"Nobody can be named yet: {REASONS[reason]}.", reason)
    if late:
        return JobVerdict("late", _late(late, len(ranks), world_size), None, list(late))
    return JobVerdict("even", _even(ranks, world_size))


def _late(late: Sequence[LateView], ranks_here: int, world_size: int) -> str:
    gpus_lost = sum(each.gpus_lost for each in late)
    names = [f"rank {each.rank} is late in {each.stage}" for each in late[:3]]
    if len(late) > 3:
        names.append(f"{len(late) - 3} more are late")
    cost = f"{_few(gpus_lost)} of {_gpus(ranks_here, world_size)} are waiting"
    return _sentence(f"{_listed(names)}: {cost} for {'it' if len(late) == 1 else 'them'}.")


def _even(ranks: Sequence[RankView], world_size: int) -> str:
    sentence = f"No rank is late: the {len(ranks)} ranks here need the same time for their work."
    waits = [(rank.wait_seconds or 0.0) / (rank.step_seconds or 1.0) for rank in ranks]
    if min(waits) < COMMON_WAIT_RATIO:
        return sentence
    elsewhere = "for a rank on another node or " if len(ranks) < world_size else ""
    return f"{sentence} All wait {min(waits):.0%} of each step, {elsewhere}for the network."


def _stalled(running: Sequence[RankView]) -> str | None:
    """Say who holds the job up, if no rank has ended a step for long."""
    ages = [
        rank.last_step_age_seconds for rank in running if rank.last_step_age_seconds is not None
    ]
    steps = [rank.step_seconds for rank in running if rank.step_seconds]
    limit = max(STALLED_SECONDS, STALLED_STEPS * max(steps, default=0.0))
    if len(ages) < len(running) or min(ages) < limit:
        return None
    waiting = [rank for rank in running if rank.stage == "sync" and not rank.silent]
    holding = [rank for rank in running if rank not in waiting]
    since = f"No step for {_duration(min(ages))}"
    if not holding:
        return (
            f"{since}: every rank here waits in sync, so what holds the job up is not on this node."
        )
    names = _listed([_whereabouts(rank) for rank in holding[:3]])
    more = f" and {len(holding) - 3} more" if len(holding) > 3 else ""
    others = f"; {len(waiting)} of {len(running)} ranks wait in sync" if waiting else ""
    return f"{since}: {names}{more}{others}."


def _silent(running: Sequence[RankView]) -> str:
    quiet = _duration(min(rank.heartbeat_age_seconds for rank in running))
    return (
        f"Nothing heard for {quiet}: the job was killed, or its ranks cannot reach this exporter."
    )


def _whereabouts(rank: RankView) -> str:
    if rank.silent:
        return f"rank {rank.rank} has been silent for {_duration(rank.heartbeat_age_seconds)}"
    return f"rank {rank.rank} is in {rank.stage}"


def _gpus(ranks_here: int, world_size: int) -> str:
    return (
        f"{world_size} GPUs" if ranks_here >= world_size else f"the {ranks_here} GPUs on this node"
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _few(value: float) -> str:
    return f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
