"""What is wrong with a job, from what is known of it; each finding with what to do about it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from exporter.causes.model import UNKNOWN
from exporter.live import states
from exporter.live.causes import CauseView
from exporter.live.sentences import LateView, change_sentence, duty, in_set, late_sentence
from exporter.live.wording import duration, sentence, than, which
from exporter.vocabulary.advice import advice, filled, for_alert, situations
from exporter.vocabulary.words import CAUSES, KINDS, STATES, slow_at
from rank_probe.judge.verdict import DUTY, MOST_LATE, NODE, UNSYNCED, Change
from rankskew.diagnose.model import (
    Event,
    Finding,
    JobFacts,
    Part,
    Place,
    Report,
    Step,
    host,
)
from rankskew.top.model import JobStatus, cause_of_node
from rankskew.wording import few, named_ranks


def all_findings(facts: JobFacts) -> tuple[list[Finding], list[str]]:
    """Return what is wrong with a job, the costliest first, and who else is late."""
    late, more = _late_findings(facts)
    found = [*_of_state(facts), *_losses(facts), *late]
    return sorted(found, key=lambda each: -(each.gpus_lost or 0.0)), more


def report(
    facts: JobFacts,
    source: str,
    at_seconds: float,
    findings: Iterable[Finding],
    more: Iterable[str],
    events: Iterable[Event],
) -> Report:
    """Return the report with those *findings*."""
    job = facts.job
    late_gpus = {
        late.rank: late.gpus_by_stage or {late.stage: late.gpus_lost}
        for late in job.late
        if late.gpus_lost > 0
    }
    return Report(
        source=source,
        job_id=job.job_id,
        state=job.state,
        sentence=job.sentence,
        at_seconds=at_seconds,
        cluster=job.cluster,
        world_size=job.world_size,
        loss=loss(job.lost_by_kind, late_gpus) if job.lost_by_kind else None,
        slowdown=job.slowdown,
        cost_per_hour=job.cost_per_hour,
        findings=tuple(_advised(each, job.job_id) for each in findings),
        more=tuple(more),
        events=tuple(sorted(events, key=lambda event: event.since_seconds)),
        unjudged=tuple(_unjudged(facts)),
    )


def _advised(finding: Finding, job_id: str) -> Finding:
    """Return *finding* with what to do first, all that can be done, the proof and the links."""
    entry = advice().get(finding.what) or situations()[finding.what]
    place = finding.place
    known = {
        "JOB": job_id,
        "RANK": finding.rank,
        "NODE": place.node,
        "PID": place.pid,
        "GPU": place.gpu,
        "UUID": place.gpu_uuid,
    }
    values = {name: str(value) for name, value in known.items() if value is not None}
    first = filled(finding.first or entry.first, values)
    if not finding.first and place.node and entry.playbook is not None:
        first = f"{first} on {place.node}"  # As alerts add the node to the cause of a late rank.
    detail = finding.cause.detail if finding.cause else ""
    return replace(
        finding,
        first=first,
        steps=tuple(
            Step(filled(action.do, values), action.disturbs)
            for action in entry.steps(detail, finding.stage)
        ),
        proof=filled(entry.proof, values),
        links=tuple(entry.links()),
        tells=entry.found,
    )


# ---- Late ranks ----------------------------------------------------------------------------------

# The most late ranks, sets and nodes that are reported in full.
MOST_FINDINGS: Final = 5
MOST_EVENTS: Final = 5
MOST_MILD: Final = 3
# Findings that cost less than this share of the costliest one wait until it is fixed.
WORTH_MENDING: Final = 0.1
NO_CAUSE: Final = CauseView(UNKNOWN, "", 0.0, CAUSES[UNKNOWN].text, "")


def _late_findings(facts: JobFacts) -> tuple[list[Finding], list[str]]:
    """Return the late ranks, sets and nodes, the costliest first, and who else is late."""
    called_late = [late for late in facts.job.late if late.is_called_late]
    names = {
        late.rank: f"{those.ranks} ranks{which(those.spans, those.in_common)}"
        for those in facts.job.together
        for late in in_set(those, called_late)
    }
    together: dict[str, list[LateView]] = defaultdict(list)
    for late in called_late:
        node = facts.place(late.rank).node if late.kind == NODE else None
        alone = f"node {node}" if node else f"rank {late.rank}"
        together[names.get(late.rank, alone)].append(late)
    found = sorted(together.items(), key=lambda each: -_cost(each[1]))
    least = WORTH_MENDING * _cost(found[0][1]) if found else 0.0
    told = [those for _, those in found[:MOST_FINDINGS] if _cost(those) >= least]
    little = [late for late in facts.job.late if not late.is_called_late]
    more = [mild_sentence(late) for late in little[:MOST_MILD]]
    if rest := [name for name, _ in found[len(told) :]]:
        less = "They cost less: fix the findings above first, then look again."
        more.insert(0, f"Late as well: {few(rest)}. {less}")
    return [_late_finding(facts, those) for those in told], more


def mild_sentence(late: LateView) -> str:
    """Say that a rank is too little late for an alert, late without measured waits, or on duty."""
    if late.kind == DUTY:
        return sentence(f"{duty(late)}.")
    why = "but no wait was measured" if late.kind == UNSYNCED else "too little for an alert"
    return f"Rank {late.rank} needs {late.ratio:.1%} more time {than([late.has_risen])}, {why}."


def late_events(job: JobStatus) -> Iterator[Event]:
    """Yield when the costliest ranks became slow, as far as that is known."""
    began = [late for late in job.late if late.is_called_late and late.late_for_seconds]
    for late in began[:MOST_EVENTS]:
        yield Event(late.late_for_seconds, f"Rank {late.rank} became slow {slow_at(late.stage)}.")


def _late_finding(facts: JobFacts, those: Sequence[LateView]) -> Finding:
    """Return what is known of a late rank, or of the late ranks of a node or a set."""
    first = max(those, key=lambda late: late.gpus_lost)
    is_alone = len(those) == 1 and first.kind != NODE
    nodes = {facts.place(late.rank).node for late in those}
    shared = Place(nodes.pop()) if len(nodes) == 1 else Place()
    stage = Counter(late.stage for late in those).most_common(1)[0][0]
    lines = [line for late in those for line in facts.lines.get(late.rank, ())]
    cause = cause_of_node(those) or NO_CAUSE
    return Finding(
        what=cause.cause if cause.cause in advice() else UNKNOWN,
        sentence=late_sentence(those, facts.job.world_size or len(those), facts.job.together),
        rank=first.rank if is_alone else None,
        ranks=tuple(sorted(late.rank for late in those)),
        place=facts.place(first.rank) if is_alone else shared,
        stage=stage,
        kind=first.kind,
        ratio=fmean(late.ratio for late in those),
        gpus_lost=_cost(those),
        since_seconds=max(late.late_for_seconds for late in those) or None,
        lines=tuple(sorted(lines, key=lambda line: (line.stage != stage, -line.share))),
        cause=cause,
        first=cause.first_action or None,
    )


def _cost(those: Sequence[LateView]) -> float:
    return sum(late.gpus_lost for late in those)


# ---- A job that stands still, is not seen, or is not judged --------------------------------------

MOST_NODES: Final = 3
# Why a job without a verdict of its ranks is not judged, if nothing better is known.
NO_JOIN: Final = "no_join"


def _of_state(facts: JobFacts) -> Iterator[Finding]:
    state = facts.job.state
    if state == states.HUNG:
        yield _hung(facts)
    elif state == states.EXPORTER_DOWN:
        for instance in facts.down[:MOST_NODES]:
            said = f"The exporter at {instance} does not answer: nothing is known of its node now."
            yield Finding("exporter_down", said, place=Place(host(instance)))
    elif state == states.RANKS_MISSING:
        yield from _missing(facts)
    elif state == states.STARTING:
        yield _starting(facts)
    elif state in (states.FINISHED, states.NO_PROBE, states.STANDS_STILL, states.UNUSED_GPUS):
        yield Finding(state, facts.job.sentence)
    elif state == states.NOT_JUDGEABLE:
        told = [reason for reason in facts.reasons if reason in situations()]
        for reason in told:
            said = f"The job cannot be judged: {situations()[reason].text}."
            yield Finding(reason, facts.job.sentence if reason == "no_steps" else said)
        if not told:
            yield Finding(NO_JOIN, facts.job.sentence)


def _unjudged(facts: JobFacts) -> Iterator[str]:
    """Say what of the job could not be judged, and why."""
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
        gpus_lost=float(facts.ranks),
        since_seconds=job.since_seconds,
    )


def _missing(facts: JobFacts) -> Iterator[Finding]:
    nodes: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(facts.silent):
        nodes[facts.place(rank).node or "its node"].append(rank)
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
        those = sorted(facts.unprobed)
        place = Place(facts.place(those[0]).node)
        said = f"Without the probe: {named_ranks(those)}, on {place.node or 'its node'} for one."
        yield Finding("ranks_without_probe", said, ranks=tuple(those), place=place)
    elif not nodes:
        yield Finding("ranks_missing", facts.job.sentence)


def _starting(facts: JobFacts) -> Finding:
    age, limit = facts.age_seconds, facts.threshold("start_seconds")
    is_slow = facts.job.alert is not None or (age is not None and age > limit)
    return Finding(
        "slow_start" if is_slow else "starting",
        facts.job.sentence,
        place=next((facts.place(rank.rank) for rank in facts.job.ranks), Place()),
        since_seconds=age,
    )


# ---- Losses for which no rank is to blame --------------------------------------------------------

# States that say nothing of the ranks' pace.
PACELESS: Final = (states.FINISHED, states.NO_PROBE, states.STARTING, states.HUNG)
# By kind, the threshold above which a loss is reported: a share of the ranks.
LIMITS: Final = {
    "pause": "gpus_lost_ratio",
    "shared": "gpus_lost_ratio",
    "rotating": "rotating_lost_ratio",
    "group": "group_lost_ratio",
    "common": "wait_share",
}


def _losses(facts: JobFacts) -> Iterator[Finding]:
    job = facts.job
    # An exporter has a sentence of its own for one kind: that of its alert, or else of its state.
    told = for_alert(job.alert) if job.alert else None
    known = told.cause if told and told.cause in LIMITS else job.state
    for kind, name in LIMITS.items() if job.state not in PACELESS else ():
        gpus = job.lost_by_kind.get(kind, 0.0)
        if gpus > facts.threshold(name) * facts.ranks:
            stage = max(facts.rotating, key=lambda each: facts.rotating[each], default=None)
            stage = stage if kind == "rotating" else None
            is_told = kind == known and job.sentence != STATES[job.state].sentence
            said = job.sentence if is_told else loss_sentence(kind, gpus, facts.ranks, stage)
            what = told.cause if is_told and told else kind
            yield Finding(what, said, gpus_lost=gpus, stage=stage, kind=kind)


def loss_sentence(kind: str, gpus: float, ranks: int, stage: str | None) -> str:
    """Say a loss of one of LIMITS, mostly in *stage* if that is known."""
    cost = f"{gpus:.2f} of {ranks} GPUs"
    where = f", mostly {slow_at(stage)}" if stage else ""
    return {
        "pause": f"A rank, or all, stopped once for long; that costs {cost} of the last minute.",
        "shared": f"All ranks wait together{where}; that costs {cost}.",
        "rotating": f"A different rank is slow in each step{where}; "
        f"{cost} wait for whichever it is.",
        "group": f"A peer group has more work than the others; {cost} wait for it.",
        "common": f"All ranks wait for communication; that costs {cost}, whichever rank is late.",
    }[kind]


# ---- The loss in parts ---------------------------------------------------------------------------

# Smaller parts get no line.
SMALLEST_GPUS: Final = 0.005
# The most late ranks that get a part of their own.
MOST_RANKS: Final = 10


def loss(kinds: Mapping[str, float], late: Mapping[int, Mapping[str, float]]) -> Part:
    """Return all that is lost by kind, then to *late* ranks, then by stage; the parts add up.

    The cost of a late rank is a mean since it became late, that of its kind a mean of the last
    minute; so the ranks share what their kind costs in proportion to their own costs.
    """
    parts = [
        Part(words.to, kinds[kind], _ranks(kinds[kind], late) if kind == "persistent" else ())
        for kind, words in KINDS.items()
        if kind in kinds
    ]
    return Part("lost", sum(part.gpus for part in parts), tuple(parts))


def _ranks(gpus: float, late: Mapping[int, Mapping[str, float]]) -> tuple[Part, ...]:
    named = sum(sum(stages.values()) for stages in late.values())
    if named <= 0:
        return ()
    # If only the costliest ranks are listed, the other late ranks have cost the rest.
    factor = gpus / named if len(late) < MOST_LATE else min(1.0, gpus / named)
    parts = []
    for rank, stages in late.items():
        costliest = sorted(stages.items(), key=lambda each: -each[1])
        of_stages = tuple(Part(stage, factor * lost) for stage, lost in costliest)
        parts.append(Part(f"rank {rank}", factor * sum(stages.values()), of_stages))
    parts = sorted(parts, key=lambda part: -part.gpus)[:MOST_RANKS]
    rest = gpus - sum(part.gpus for part in parts)
    return (*parts, *([Part("other ranks", rest)] if rest >= SMALLEST_GPUS else []))


# ---- A job that became slower without a late rank ------------------------------------------------


def slower(
    change: Change,
    sentence: str = "",
    why: Iterable[tuple[str, str, str]] = (),
    facts: Iterable[str] = (),
) -> Finding:
    """Return the finding of *change*, with *sentence* in place of the usual one if given.

    *why* has causes, each with the node that found it from its own past and a sentence on it.
    """
    nodes: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for cause, node, said in sorted(why):
        nodes[cause].append((node, said))
    causes = [
        f"Cause on {node}{f' and {len(more)} more' if more else ''}: {said}."
        for (node, said), *more in sorted(nodes.values(), key=len, reverse=True)
    ]
    return Finding(
        "slower",
        sentence or change_sentence(change),
        stage=change.stage,
        since_seconds=change.since_seconds,
        facts=(*causes, *facts),
    )
