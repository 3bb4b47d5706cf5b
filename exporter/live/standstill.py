"""Ranks that make no progress, in words: a job that hangs, ranks that report no more."""

from collections.abc import Sequence
from typing import Final

from exporter.live.ranks import EventView, RankView
from exporter.live.sentences import MOST_NAMES, duration, listed, sentence

# A job hangs if no rank has finished a step for this long and for the time of this many steps.
HUNG_SECONDS: Final = 30.0
HUNG_STEPS: Final = 10.0


def holding(running: Sequence[RankView]) -> list[RankView]:
    """Return the ranks that have stepped and do not wait for others now."""
    # A rank that has never stepped may not train at all: an evaluator, a rollout server.
    return [
        rank
        for rank in running
        if rank.last_step_age_seconds is not None and (rank.stage != "sync" or rank.silent)
    ]


def hung_sentence(running: Sequence[RankView], world_size: int) -> str | None:
    """Say which ranks hold the job up, if no rank has finished a step for a long time."""
    stepping = [rank for rank in running if rank.last_step_age_seconds is not None]
    ages = [rank.last_step_age_seconds or 0.0 for rank in stepping]
    steps = [rank.step_seconds for rank in running if rank.step_seconds]
    limit = max(HUNG_SECONDS, HUNG_STEPS * max(steps, default=0.0))
    if not ages or min(ages) < limit:
        return None
    gpus = "its GPU waits" if world_size == 1 else f"{world_size} of {world_size} GPUs wait"
    since = f"No step for {duration(min(ages))}, {gpus}"
    those = holding(running)
    if not those:
        return f"{since}: {_nobody_here_holds(running, stepping)}."
    names = listed([_whereabouts(rank) for rank in those[:MOST_NAMES]])
    more = f" and {len(those) - MOST_NAMES} more" if len(those) > MOST_NAMES else ""
    waiting = len(stepping) - len(those)
    others = f"; {waiting} of {len(running)} ranks wait in sync" if waiting else ""
    return f"{since}: {names}{more}{others}."


def dumps_sentences(running: Sequence[RankView]) -> list[str]:
    """Say how to read what torch writes of a hang, if its ranks were started to write it."""
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
    ranks = "rank has" if unseen == 1 else "ranks have"
    return (
        f"{unseen} of {world_size} {ranks} never been in a step that the judge saw: not started, "
        "without the probe, or not training."
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


def _nobody_here_holds(running: Sequence[RankView], stepping: Sequence[RankView]) -> str:
    if len(stepping) == len(running):
        return "every rank on this node waits in sync, so the cause is not on this node"
    never = [_whereabouts(rank) for rank in running if rank not in stepping]
    return (
        "every rank on this node that has finished a step waits in sync; of those that have not, "
        f"{listed(never[:MOST_NAMES])}"
    )


def _whereabouts(rank: RankView) -> str:
    last = "" if rank.last_event is None else f" (its last event: {_ago(rank.last_event)})"
    if rank.silent:
        return f"rank {rank.rank} has been silent for {duration(rank.heartbeat_age_seconds)}{last}"
    return f"rank {rank.rank} is in {rank.stage}{last}"
