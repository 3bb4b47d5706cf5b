"""Ranks that make no progress, in words: a job that hangs, ranks that report no more."""

import math
from collections.abc import Sequence
from typing import Final

from exporter.live.ranks import EventView, RankView
from exporter.live.sentences import elsewhere
from exporter.live.wording import MOST_NAMES, duration, listed, sentence
from exporter.ranks.jobs import NodeJob
from rank_probe.judge.standing import Stand, most_wait_at, stands_after, suspects

# A job does not hang before this many of its steps would have passed.
HUNG_STEPS: Final = 10.0
# Stages that may take long while all other ranks wait.
LONG_STAGES: Final = ("checkpoint", "eval")
# A rank that fell silent longer than this before the last step has only lost its reports.
SILENT_BEFORE_SECONDS: Final = 60.0


def holding(ranks: Sequence[RankView]) -> list[RankView]:
    """Return the ranks that have stepped and do not wait for others, in the order of `suspects`."""
    here = {rank.rank: rank for rank in ranks}
    order = suspects({rank.rank: _stand(rank) for rank in ranks})
    # A rank that has never stepped may not train at all: an evaluator, a rollout server.
    return [here[rank] for rank in order if here[rank].last_step_age_seconds is not None]


def waiting(ranks: Sequence[RankView]) -> list[RankView]:
    """Return the ranks that wait for others now."""
    return [rank for rank in ranks if _stand(rank).waits]


def far_suspect(job: NodeJob, ranks: Sequence[RankView]) -> dict[str, str]:
    """Return the rank on another node for which *job* waits; empty if it is one of *ranks* here."""
    suspect = {} if job.join is None else dict(job.join.verdict.suspect)
    is_here = suspect.get("rank") in {str(rank.rank) for rank in ranks}
    return suspect if not is_here and suspect.get("rank", "").isdecimal() else {}


def _stand(rank: RankView) -> Stand:
    if rank.silent:
        return Stand("", rank.heartbeat_age_seconds, rank.steps, rank.finished)
    return Stand(rank.stage, rank.stage_elapsed_seconds, rank.steps, rank.finished, _line(rank))


def _line(rank: RankView) -> str:
    """Return the line that *rank* is in now; its lines in other stages do not count."""
    return next((each.place for each in rank.late_lines if each.stage == rank.stage), "")


def hung_sentence(job: NodeJob, ranks: Sequence[RankView], world_size: int) -> str | None:
    """Say which of the *ranks* here hold *job* up if it hangs; None if it does not.

    It hangs once a rank has waited for others for longer than the limit, and no rank has finished a
    step for as long. If no rank is seen to wait, save or evaluate, the limit is that of a long
    stage. The rules in hang.yaml use the same definition.
    """
    running = [rank for rank in ranks if not rank.finished]
    limit = _limit_seconds(job, running)
    age = standing_seconds(running)
    waited = max((rank.stage_elapsed_seconds for rank in waiting(running)), default=0.0)
    beating = [rank for rank in running if not rank.silent]
    if beating and all(rank.stage not in (*LONG_STAGES, "sync") for rank in beating):
        limit, waited = max(limit, job.threshold("hang_long_stage_seconds")), age or 0.0
    if waited <= limit or (age is not None and age <= limit):
        return None
    gpus = "its GPU waits" if world_size == 1 else f"{world_size} of {world_size} GPUs wait"
    since = f"No step for {duration(waited if age is None else age)}, {gpus}"
    said = _whereabouts_of_suspects(job, ranks)
    if not said:
        return f"{since}: {_nobody_here_holds(running, world_size)}."
    here = " on this node" if far_suspect(job, ranks) else ""
    others = f"; {len(waiting(running)) or 'none'} of {len(running)} ranks{here} wait in sync"
    return f"{since}: {said}{others}."


def standing_sentence(job: NodeJob, running: Sequence[RankView]) -> str | None:
    """Say where the ranks are if none has finished a step for long, though the job does not hang.

    None if the job steps.
    """
    age = standing_seconds(running)
    step_seconds = _step_seconds(job, running)
    if age is None or age <= stands_after(step_seconds):
        return None
    said = _whereabouts_of_suspects(job, running) or _all_whereabouts(waiting(running))
    return f"No rank on this node has finished a step for {duration(age)}: {said}."


def standing_seconds(running: Sequence[RankView]) -> float | None:
    """Return how long ago any rank finished a step; None before the first."""
    ages = (rank.last_step_age_seconds for rank in running)
    return min((age for age in ages if age is not None), default=None)


def _limit_seconds(job: NodeJob, running: Sequence[RankView]) -> float:
    """Return how long a wait may last without being a hang."""
    limits = [job.threshold("hang_seconds"), HUNG_STEPS * _step_seconds(job, running)]
    is_long = any(rank.stage in LONG_STAGES and not rank.silent for rank in running)
    is_long |= far_suspect(job, running).get("stage") in LONG_STAGES
    if is_long or not any(rank.steps for rank in running):
        limits.append(job.threshold("hang_long_stage_seconds"))
    age = standing_seconds(running)
    last = math.inf if age is None else age + SILENT_BEFORE_SECONDS
    ages = (rank.heartbeat_age_seconds for rank in running if rank.silent)
    silent = max((each for each in ages if each <= last), default=0.0)
    enough = job.threshold("silent_seconds")
    return min(max(limits), enough) if silent > enough else max(limits)


def _step_seconds(job: NodeJob, running: Sequence[RankView]) -> float:
    aged = job.verdict()
    if aged is not None and aged.verdict.step_seconds is not None:
        return aged.verdict.step_seconds
    return max((rank.step_seconds for rank in running if rank.step_seconds), default=0.0)


def dumps_sentences(running: Sequence[RankView]) -> list[str]:
    """Say how to read torch's dumps of a hang, if the ranks were started to write any."""
    directories = sorted({rank.dumps for rank in running if rank.dumps is not None})
    return [
        f"When a collective times out, torch writes a dump of each rank to {directory} on its "
        f"node: rankskew flight-recorder {directory}"
        for directory in directories[:MOST_NAMES]
    ]


def silent_sentence(running: Sequence[RankView]) -> str:
    """Say that all or some of the *running* ranks have stopped reporting."""
    silent = [rank for rank in running if rank.silent]
    quiet = duration(min(rank.heartbeat_age_seconds for rank in silent))
    if len(silent) == len(running):
        return (
            f"No report for {quiet}: the job was killed, or its ranks cannot reach this exporter."
        )
    names = listed([str(rank.rank) for rank in silent[:MOST_NAMES]])
    more = f" and {len(silent) - MOST_NAMES} more" if len(silent) > MOST_NAMES else ""
    who = f"rank {names} has" if len(silent) == 1 else f"ranks {names}{more} have"
    return sentence(
        f"{who} not reported for {quiet}: dead, stopped, or unable to reach this exporter."
    )


def unseen_sentence(unseen: int, world_size: int) -> str:
    """Say that ranks of other nodes take no part in the job's steps."""
    have = "has" if unseen == 1 else "have"
    return (
        f"{unseen} of {world_size} ranks {have} never taken part in a step with the others: not "
        "started, without the probe, or not training."
    )


def last_events(ranks: Sequence[RankView]) -> list[str]:
    """Say in sentences what *ranks* last began or ended; a probe of an older release tells none."""
    alike: dict[tuple[str, str], list[tuple[RankView, EventView]]] = {}
    for rank in ranks:
        if rank.last_event is not None:
            what = (rank.last_event.event, rank.last_event.state)
            alike.setdefault(what, []).append((rank, rank.last_event))
    return [_last_events(those) for those in alike.values()]


def _last_events(those: Sequence[tuple[RankView, EventView]]) -> str:
    names = [str(rank.rank) for rank, _ in those[:MOST_NAMES]]
    if len(those) > MOST_NAMES:
        names.append(f"{len(those) - MOST_NAMES} more")
    who = "rank" if len(those) == 1 else "ranks"
    oldest = max((event for _, event in those), key=lambda event: event.age_seconds)
    return f"Last event of {who} {listed(names)}: {_ago(oldest)}."


def _ago(last: EventView) -> str:
    return f"{last.event} {last.state} {duration(last.age_seconds)} ago"


def _nobody_here_holds(running: Sequence[RankView], world_size: int) -> str:
    never = [rank for rank in running if rank.last_step_age_seconds is None]
    never = [rank for rank in never if not _stand(rank).waits]
    if not never and len(running) == world_size:
        return "all of them wait in sync, so the collective itself is stuck"
    if not never:
        return "every rank on this node waits in sync, so the cause is not on this node"
    return (
        "every rank on this node that has finished a step waits in sync; of those that have not, "
        f"{listed([_whereabouts(rank) for rank in never[:MOST_NAMES]])}"
    )


def _whereabouts_of_suspects(job: NodeJob, ranks: Sequence[RankView]) -> str:
    """Say where the ranks are that may hold *job* up, that of another node first; empty if none."""
    those, far = holding(ranks), far_suspect(job, ranks)
    if not far:
        usual = most_wait_at([_stand(rank) for rank in ranks])
        others = f", and most others at {usual}" if usual else ""
        return f"{_all_whereabouts(those)}{others}" if those else ""
    doing = _is_in(*(far.get(name, "") for name in ("stage", "line", "state")))
    name = f"rank {far['rank']}{elsewhere(far)} {doing}"
    return f"{name}; here {_all_whereabouts(those)}" if those else name


def _all_whereabouts(those: Sequence[RankView]) -> str:
    more = f" and {len(those) - MOST_NAMES} more" if len(those) > MOST_NAMES else ""
    return f"{listed([_whereabouts(rank) for rank in those[:MOST_NAMES]])}{more}"


def _whereabouts(rank: RankView) -> str:
    last = "" if rank.last_event is None else f" (its last event: {_ago(rank.last_event)})"
    if rank.finished:
        return f"rank {rank.rank} has finished"
    if rank.silent:
        return f"rank {rank.rank} has been silent for {duration(rank.heartbeat_age_seconds)}{last}"
    state = "" if _stand(rank).waits else rank.state
    return f"rank {rank.rank} {_is_in(rank.stage, _line(rank), state)}{last}"


def _is_in(stage: str, line: str, state: str) -> str:
    """Say where a rank is, as far as is known; without a *stage* it is silent."""
    waits = f", waiting for a {state}" if state in ("disk", "lock", "pipe", "socket") else ""
    return f"is in {stage}{f' at {line}' if line else ''}{waits}" if stage else "has been silent"
