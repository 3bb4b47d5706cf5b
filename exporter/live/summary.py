"""The live page's summary of a job: one state, one sentence, and the figures behind it.

The job's own judge decides which ranks are late (rank_probe.verdict); this module only puts its
verdict into sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from exporter.live.sentences import (
    MOST_NAMES,
    LateView,
    LineView,
    details,
    duration,
    even_sentence,
    late_sentence,
    lines_sentence,
    listed,
    view_late,
)
from exporter.ranks.jobs import NodeJob, Spoken, step_age_seconds
from exporter.ranks.store import HeldRank
from rank_probe.snapshot import LEVEL_OFF
from rank_probe.verdict import NO_BUSY_TIME, NO_PEERS, NO_SYNC, WARMING_UP

# A job is stalled if no rank has finished a step for this long and for the time of this many steps.
STALLED_SECONDS: Final = 30.0
STALLED_STEPS: Final = 10.0
# The join begins with the first step: a rank with more steps and no join will not get one.
BEGUN_STEPS: Final = 5

OFF, NO_JOIN = "off", "no_join"
REASONS: Final = {
    OFF: "the probe of a rank on this node is off; rankskew control JOB_ID stages turns it on",
    NO_JOIN: "the ranks on this node do not compare their steps; Prometheus' fallback rules can "
    "still name a rank that is 10 % late",
    WARMING_UP: "the ranks must first finish a few dozen steps that can be compared",
    NO_PEERS: "no rank has a peer to compare with",
    NO_SYNC: "no wait in collectives was measured, so a rank that waits looks like a late one",
    NO_BUSY_TIME: "the ranks report steps that contain nothing but waiting",
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
    late_lines: list[LineView] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """*state*: finished, silent, stalled, not_judgeable, late or even. *sentence* is for people.

    *details* are more such sentences. The rest comes from the judge and is empty without one:
    *gpus_lost* by kind, *slowdown*, and the *coverage* of the job's ranks and steps.
    """

    state: str
    sentence: str
    reason: str | None = None
    late: list[LateView] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    gpus_lost: dict[str, float] = field(default_factory=dict)
    slowdown: float | None = None
    coverage: float | None = None


def view_rank(rank: HeldRank, stage_seconds: dict[str, float] | None, now: float) -> RankView:
    """Describe *rank* at *now*, in seconds of the store's clock."""
    snapshot = rank.snapshot
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
        heartbeat_age_seconds=now - rank.received_seconds,
        last_step_age_seconds=step_age_seconds(rank, now),
        silent=rank.is_silent(now),
        finished=snapshot.finished,
        level=snapshot.level,
        late_lines=[LineView(**each) for each in snapshot.late_lines],
    )


def job_verdict(job: NodeJob, ranks: Sequence[RankView]) -> JobVerdict:
    """Return the most urgent statement about *job*; *ranks* are its ranks on this node."""
    running = [rank for rank in ranks if not rank.finished]
    if not running:
        return JobVerdict("finished", f"Finished after {max(r.steps for r in ranks)} steps.")
    if all(rank.silent for rank in running):
        return JobVerdict("silent", _silent(running))
    if any(rank.level == LEVEL_OFF for rank in running):  # It counts no steps, so it cannot stall.
        return _not_judgeable(OFF)
    stalled = _stalled(running)
    spoken = job.spoken()
    if stalled:
        said = JobVerdict("stalled", stalled)
    elif spoken is None:
        said = _not_judgeable(_why_no_verdict(job))
    else:
        said = _judged(job, spoken)
    return replace(said, details=[*said.details, *_lines(running)])


def _lines(running: Sequence[RankView]) -> list[str]:
    """Say where the late ranks of this node spend their time, in their code."""
    late = [rank for rank in running if rank.late_lines and not rank.silent]
    return [lines_sentence(rank.rank, rank.late_lines) for rank in late[:MOST_NAMES]]


def _not_judgeable(reason: str) -> JobVerdict:
    yet = " yet" if reason == WARMING_UP else ""
    return JobVerdict("not_judgeable", f"Cannot judge this job{yet}: {REASONS[reason]}.", reason)


def _why_no_verdict(job: NodeJob) -> str:
    if job.world_size == 1:
        return NO_PEERS
    snapshots = [rank.snapshot for rank in job.beating]
    has_begun = any(each.joined_seconds is not None for each in snapshots)
    if has_begun and job.join_coverage is None:
        return WARMING_UP
    is_young = max(each.steps for each in snapshots) < BEGUN_STEPS
    return WARMING_UP if is_young and not has_begun else NO_JOIN


def _judged(job: NodeJob, spoken: Spoken) -> JobVerdict:
    """Repeat the verdict of the job's judge."""
    verdict = spoken.verdict
    here = {rank.snapshot.rank for rank in job.ranks}
    late = [view_late(each, spoken.age_seconds, here) for each in verdict.late]
    late.sort(key=lambda each: not each.wakes)  # The costliest come first in each part.
    waking = [each for each in late if each.wakes]
    if verdict.reason is not None:
        said = _not_judgeable(verdict.reason)
    elif waking:
        said = JobVerdict("late", late_sentence(waking, job.world_size or len(here)))
    else:
        said = JobVerdict("even", even_sentence(verdict, late))
    return replace(
        said,
        late=late,
        details=details(verdict, late, spoken.age_seconds, job.join_coverage),
        gpus_lost=dict(verdict.gpus_lost),
        slowdown=verdict.slowdown,
        coverage=job.coverage(verdict),
    )


def _stalled(running: Sequence[RankView]) -> str | None:
    """Say which ranks hold the job up, if no rank has finished a step for a long time."""
    stepping = [rank for rank in running if rank.last_step_age_seconds is not None]
    ages = [rank.last_step_age_seconds or 0.0 for rank in stepping]
    steps = [rank.step_seconds for rank in running if rank.step_seconds]
    limit = max(STALLED_SECONDS, STALLED_STEPS * max(steps, default=0.0))
    if not ages or min(ages) < limit:
        return None
    # A rank that has never stepped may not train at all: an evaluator, a rollout server.
    waiting = [rank for rank in stepping if rank.stage == "sync" and not rank.silent]
    holding = [rank for rank in stepping if rank not in waiting]
    since = f"No step for {duration(min(ages))}"
    if not holding:
        return f"{since}: {_nobody_here_holds(running, stepping)}."
    names = listed([_whereabouts(rank) for rank in holding[:MOST_NAMES]])
    more = f" and {len(holding) - MOST_NAMES} more" if len(holding) > MOST_NAMES else ""
    others = f"; {len(waiting)} of {len(running)} ranks wait in sync" if waiting else ""
    return f"{since}: {names}{more}{others}."


def _nobody_here_holds(running: Sequence[RankView], stepping: Sequence[RankView]) -> str:
    if len(stepping) == len(running):
        return "every rank on this node waits in sync, so the cause is not on this node"
    never = [_whereabouts(rank) for rank in running if rank not in stepping]
    return (
        "every rank on this node that has finished a step waits in sync; of those that have not, "
        f"{listed(never[:MOST_NAMES])}"
    )


def _silent(running: Sequence[RankView]) -> str:
    quiet = duration(min(rank.heartbeat_age_seconds for rank in running))
    return f"No report for {quiet}: the job was killed, or its ranks cannot reach this exporter."


def _whereabouts(rank: RankView) -> str:
    if rank.silent:
        return f"rank {rank.rank} has been silent for {duration(rank.heartbeat_age_seconds)}"
    return f"rank {rank.rank} is in {rank.stage}"
