"""What is wrong besides late ranks: a job stands still, is not seen, loses, or is not judged."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from exporter.live import states
from exporter.live.sentences import MOST_NAMES, duration, listed
from exporter.vocabulary.words import slow_at
from rankskew.diagnose.advice import situations
from rankskew.diagnose.known import Known
from rankskew.diagnose.model import Finding, Place

MOST_NODES: Final = 3
# States that say nothing of the ranks' pace.
PACELESS: Final = (states.FINISHED, states.NO_PROBE, states.STARTING, states.HUNG)
# Losses for which no rank is to blame, with their thresholds, shares of the ranks.
LIMITS: Final = {
    "rotating": "rotating_lost_ratio",
    "group": "group_lost_ratio",
    "common": "wait_share",
}
# Why a job without a verdict of its ranks is not judged, if nothing better is known.
NO_JOIN: Final = "no_join"


def situation_findings(known: Known) -> Iterator[Finding]:
    """Yield what the state of the job says, and its losses without a late rank."""
    state = known.job.state
    if state == states.HUNG:
        yield _hung(known)
    elif state == states.EXPORTER_DOWN:
        for place in known.down[:MOST_NODES]:
            said = (
                f"The exporter at {place.shown} does not answer: nothing is known of its node now."
            )
            yield Finding("exporter_down", said, place=place)
    elif state == states.RANKS_MISSING:
        yield from _missing(known)
    elif state == states.STARTING:
        yield _starting(known)
    elif state in (states.FINISHED, states.NO_PROBE):
        yield Finding(state, known.job.sentence)
    elif state == states.NOT_JUDGEABLE:
        yield from not_judgeable(known)
    for kind, name in LIMITS.items() if state not in PACELESS else ():
        gpus = known.job.lost_by_kind.get(kind, 0.0)
        if gpus > known.threshold(name) * known.ranks:
            stage = max(known.rotating, key=lambda each: known.rotating[each], default=None)
            yield loss_finding(kind, gpus, known.ranks, stage)


def loss_finding(kind: str, gpus: float, ranks: float, stage: str | None) -> Finding:
    """Return a loss of one of LIMITS; a rotating one is mostly in *stage*."""
    cost = f"{gpus:.2f} of {ranks:.0f} GPUs"
    stage = stage if kind == "rotating" else None
    if kind == "rotating":
        where = f", mostly {slow_at(stage)}" if stage else ""
        said = f"Another rank is slow in each step{where}; {cost} wait for whichever it is."
    elif kind == "group":
        said = f"A peer group has more work than the others; {cost} wait for it."
    else:
        said = f"All ranks wait for communication; that costs {cost}, whichever rank is late."
    return Finding(kind, said, gpus_lost=gpus, stage=stage, kind=kind)


def not_judgeable(known: Known) -> Iterator[Finding]:
    """Yield why the job cannot be judged."""
    told = [reason for reason in known.reasons if reason in situations()]
    for reason in told:
        yield Finding(reason, f"The job cannot be judged: {situations()[reason].text}.")
    if not told:
        yield Finding(NO_JOIN, known.job.sentence)


def unjudged(known: Known) -> Iterator[str]:
    """Say what of the job could not be judged, and why."""
    for reason in known.reasons:
        entry = situations().get(reason)
        name = reason.replace("_", " ")
        yield f"Not judgeable ({name}): {entry.text if entry is not None else name}."
    coverage = known.job.coverage
    if coverage is not None and coverage < 0.995 and not known.reasons:
        yield f"Only {coverage:.0%} of the job's ranks and steps are judged."
    if known.judge == "node":
        yield "The ranks do not compare their steps: each is compared with those of its node only."


def _hung(known: Known) -> Finding:
    job = known.job
    rank, stage = job.culprit or (None, None)
    alone = "hung_finished" if stage == "finished" else "hung"
    return Finding(
        "hung_together" if rank is None else alone,
        job.sentence,
        rank=rank,
        ranks=() if rank is None else (rank,),
        place=Place() if rank is None else known.place(rank),
        stage=stage,
        gpus_lost=float(job.world_size or len(job.ranks)),
        since_seconds=job.since_seconds,
    )


def _missing(known: Known) -> Iterator[Finding]:
    nodes: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(known.silent):
        nodes[known.place(rank).shown or "its node"].append(rank)
    for node, ranks in list(nodes.items())[:MOST_NODES]:
        more = f", nor have {len(ranks) - 1} more there" if len(ranks) > 1 else ""
        yield Finding(
            "ranks_silent",
            f"Rank {ranks[0]} on {node} has not reported for {duration(known.silent[ranks[0]])}"
            f"{more}: dead, stopped, or unable to reach its exporter.",
            rank=ranks[0],
            ranks=tuple(ranks),
            place=known.place(ranks[0]),
            since_seconds=known.silent[ranks[0]],
        )
    if known.unprobed:
        yield _unprobed(known)
    elif not nodes:
        yield Finding("ranks_missing", known.job.sentence)


def _unprobed(known: Known) -> Finding:
    ranks = sorted(known.unprobed)
    place = known.place(ranks[0])
    names = listed([str(rank) for rank in ranks[:MOST_NAMES]])
    more = f" and {len(ranks) - MOST_NAMES} more" if len(ranks) > MOST_NAMES else ""
    return Finding(
        "ranks_without_probe",
        f"Ranks {names}{more} run without the probe, on {place.shown or 'its node'} for one.",
        ranks=tuple(ranks),
        place=Place(node=place.node, instance=place.instance),
    )


def _starting(known: Known) -> Finding:
    age, limit = known.age_seconds, known.threshold("start_seconds")
    is_slow = known.job.alert is not None or (age is not None and age > limit)
    return Finding(
        "slow_start" if is_slow else "starting",
        known.job.sentence,
        place=next((known.place(rank.rank) for rank in known.job.ranks), Place()),
        since_seconds=age,
    )
