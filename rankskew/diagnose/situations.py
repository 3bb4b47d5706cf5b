"""What is wrong besides late ranks: a job stands still, is not seen, loses, or is not judged."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from exporter.live import states
from exporter.live.sentences import change_sentence
from exporter.live.wording import MOST_NAMES, duration, listed
from exporter.vocabulary.words import slow_at
from rank_probe.judge.verdict import Change
from rankskew.diagnose.advice import situations
from rankskew.diagnose.model import Finding, JobFacts, Place
from rankskew.wording import counted

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


def situation_findings(facts: JobFacts) -> Iterator[Finding]:
    """Yield what the state of the job says, and its losses without a late rank."""
    state = facts.job.state
    if state == states.HUNG:
        yield _hung(facts)
    elif state == states.EXPORTER_DOWN:
        for place in facts.down[:MOST_NODES]:
            said = (
                f"The exporter at {place.shown} does not answer: nothing is known of its node now."
            )
            yield Finding("exporter_down", said, place=place)
    elif state == states.RANKS_MISSING:
        yield from _missing(facts)
    elif state == states.STARTING:
        yield _starting(facts)
    elif state in (states.FINISHED, states.NO_PROBE):
        yield Finding(state, facts.job.sentence)
    elif state == states.NOT_JUDGEABLE:
        yield from not_judgeable(facts)
    for kind, name in LIMITS.items() if state not in PACELESS else ():
        gpus = facts.job.lost_by_kind.get(kind, 0.0)
        if gpus > facts.threshold(name) * facts.ranks:
            stage = max(facts.rotating, key=lambda each: facts.rotating[each], default=None)
            yield loss_finding(kind, gpus, facts.ranks, stage)


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


def not_judgeable(facts: JobFacts) -> Iterator[Finding]:
    """Yield why the job cannot be judged."""
    told = [reason for reason in facts.reasons if reason in situations()]
    for reason in told:
        yield Finding(reason, f"The job cannot be judged: {situations()[reason].text}.")
    if not told:
        yield Finding(NO_JOIN, facts.job.sentence)


def unjudged(facts: JobFacts) -> Iterator[str]:
    """Say what of the job could not be judged, and why."""
    for reason in facts.reasons:
        entry = situations().get(reason)
        name = reason.replace("_", " ")
        yield f"Not judgeable ({name}): {entry.text if entry is not None else name}."
    coverage = facts.job.coverage
    if coverage is not None and coverage < 0.995 and not facts.reasons:
        yield f"Only {coverage:.0%} of the job's ranks and steps are judged."
    if facts.judge == "node":
        yield "The ranks do not compare their steps: each is compared with those of its node only."


def _hung(facts: JobFacts) -> Finding:
    job = facts.job
    rank, stage = job.culprit or (None, None)
    alone = "hung_finished" if stage == "finished" else "hung"
    return Finding(
        "hung_together" if rank is None else alone,
        job.sentence,
        rank=rank,
        ranks=() if rank is None else (rank,),
        place=Place() if rank is None else facts.place(rank),
        stage=stage,
        gpus_lost=float(job.world_size or len(job.ranks)),
        since_seconds=job.since_seconds,
    )


def _missing(facts: JobFacts) -> Iterator[Finding]:
    nodes: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(facts.silent):
        nodes[facts.place(rank).shown or "its node"].append(rank)
    for node, ranks in list(nodes.items())[:MOST_NODES]:
        more = f", nor have {len(ranks) - 1} more there" if len(ranks) > 1 else ""
        yield Finding(
            "ranks_silent",
            f"Rank {ranks[0]} on {node} has not reported for {duration(facts.silent[ranks[0]])}"
            f"{more}: dead, stopped, or unable to reach its exporter.",
            rank=ranks[0],
            ranks=tuple(ranks),
            place=facts.place(ranks[0]),
            since_seconds=facts.silent[ranks[0]],
        )
    if facts.unprobed:
        yield _unprobed(facts)
    elif not nodes:
        yield Finding("ranks_missing", facts.job.sentence)


def _unprobed(facts: JobFacts) -> Finding:
    ranks = sorted(facts.unprobed)
    place = facts.place(ranks[0])
    names = listed([str(rank) for rank in ranks[:MOST_NAMES]])
    more = f" and {len(ranks) - MOST_NAMES} more" if len(ranks) > MOST_NAMES else ""
    return Finding(
        "ranks_without_probe",
        f"Ranks {names}{more} run without the probe, on {place.shown or 'its node'} for one.",
        ranks=tuple(ranks),
        place=Place(node=place.node, instance=place.instance),
    )


def _starting(facts: JobFacts) -> Finding:
    age, limit = facts.age_seconds, facts.threshold("start_seconds")
    is_slow = facts.job.alert is not None or (age is not None and age > limit)
    return Finding(
        "slow_start" if is_slow else "starting",
        facts.job.sentence,
        place=next((facts.place(rank.rank) for rank in facts.job.ranks), Place()),
        since_seconds=age,
    )


# ---- A job that became slower without a late rank ------------------------------------------------


class WhyOnNode(NamedTuple):
    """The cause of a change by the past of one node: in one word, and in a sentence."""

    node: str
    cause: tuple[str, str]
    sentence: str


def slower(
    change: Change, sentence: str = "", why: Sequence[WhyOnNode] = (), facts: Iterable[str] = ()
) -> Finding:
    """Return the finding of *change*, said by *sentence* if the usual one does not do."""
    return Finding(
        "slower",
        sentence or change_sentence(change),
        peer_group=change.peer_group or None,
        stage=change.stage,
        since_seconds=change.since_seconds,
        facts=(*_causes_of_change(why), *facts),
    )


def _causes_of_change(why: Sequence[WhyOnNode]) -> list[str]:
    """Say each cause once, the one of most nodes first, with the figures of one node."""
    nodes: dict[tuple[str, str], list[WhyOnNode]] = {}
    for each in sorted(why):
        nodes.setdefault(each.cause, []).append(each)
    said = []
    for those in sorted(nodes.values(), key=lambda those: -len(those)):
        first, many = those[0], counted(len(those), "node")
        where = first.node if len(those) == 1 else f"{many}, such as {first.node}"
        said.append(f"Cause on {where}: {first.sentence}.")
    return said
