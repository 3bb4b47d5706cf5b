"""What is wrong besides late ranks: a job stands still, is not seen, or cannot be judged."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from exporter.advice import situations
from exporter.diagnose.known import Known
from exporter.diagnose.losses import loss_findings
from exporter.diagnose.model import Finding, Place
from exporter.live import states
from exporter.live.sentences import MOST_NAMES, duration, listed

MOST_NODES: Final = 3
# States that say nothing of the ranks' pace.
PACELESS: Final = (states.FINISHED, states.NO_PROBE, states.STARTING, states.HUNG)
# Why a job without a verdict of its ranks is not judged, if nothing better is known.
NO_JOIN: Final = "no_join"


def situation_findings(known: Known) -> Iterator[Finding]:
    """Yield what the state of the job says, and its losses without a late rank."""
    state = known.job.state
    if state == states.HUNG:
        yield _hung(known)
    elif state == states.EXPORTER_DOWN:
        yield from _down(known)
    elif state == states.RANKS_MISSING:
        yield from _missing(known)
    elif state == states.STARTING:
        yield _starting(known)
    elif state in (states.FINISHED, states.NO_PROBE):
        yield Finding(state, known.job.sentence)
    elif state == states.NOT_JUDGEABLE:
        yield from _reasons(known)
    if state not in PACELESS:
        yield from loss_findings(
            known.job.lost_by_kind, known.rotating, known.ranks, known.threshold
        )


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
    lost = float(job.world_size or len(job.ranks))
    if job.culprit is None:
        return Finding(
            "hung_together", job.sentence, gpus_lost=lost, since_seconds=job.since_seconds
        )
    rank, stage = job.culprit
    return Finding(
        "hung_finished" if stage == "finished" else "hung",
        job.sentence,
        rank=rank,
        ranks=(rank,),
        place=known.place(rank),
        stage=stage,
        gpus_lost=lost,
        since_seconds=job.since_seconds,
    )


def _down(known: Known) -> Iterator[Finding]:
    for place in known.down[:MOST_NODES]:
        yield Finding(
            "exporter_down",
            f"The exporter at {_shown(place)} does not answer: nothing is known of its node now.",
            place=place,
        )


def _missing(known: Known) -> Iterator[Finding]:
    nodes: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(known.silent):
        nodes[_shown(known.place(rank))].append(rank)
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
        f"Ranks {names}{more} run without the probe, on {_shown(place)} for one.",
        ranks=tuple(ranks),
        place=Place(node=place.node, instance=place.instance),
    )


def _starting(known: Known) -> Finding:
    age, limit = known.age_seconds, known.threshold("start_seconds")
    is_slow = known.job.alert is not None or (age is not None and age > limit)
    rank = next((rank.rank for rank in known.job.ranks), None)
    return Finding(
        "slow_start" if is_slow else "starting",
        known.job.sentence,
        place=Place() if rank is None else known.place(rank),
        since_seconds=age,
    )


def _reasons(known: Known) -> Iterator[Finding]:
    told = [reason for reason in known.reasons if reason in situations()]
    for reason in told:
        yield Finding(reason, f"The job cannot be judged: {situations()[reason].text}.")
    if not told:
        yield Finding(NO_JOIN, known.job.sentence)


def _shown(place: Place) -> str:
    """Return a node's name, or the address of its exporter if only that is known."""
    return place.instance if place.instance and not place.is_named else place.node or "its node"
