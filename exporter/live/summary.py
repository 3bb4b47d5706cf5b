"""The live page's summary of a job: one state, one sentence, and the figures behind it.

A judge decides which ranks are late (see NodeJob.verdict); this module puts that into sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from statistics import fmean
from typing import Final

from exporter.live import states
from exporter.live.causes import Causes, CauseView, WhySlower, told_cause, view_cause
from exporter.live.first_actions import advised, first_action
from exporter.live.ranks import RankView, lines_sentence
from exporter.live.sentences import (
    LateView,
    details,
    even_sentence,
    late_sentence,
    paused_sentence,
    rotating_sentence,
    shared_sentence,
    view_late,
)
from exporter.live.standstill import (
    dumps_sentences,
    far_suspect,
    hung_sentence,
    last_events,
    silent_sentence,
    standing_sentence,
    unseen_sentence,
)
from exporter.live.wording import MOST_NAMES, duration
from exporter.ranks.jobs import JOIN, AgedVerdict, NodeJob
from exporter.ranks.late_enough import late_enough
from exporter.vocabulary import words
from exporter.vocabulary.advice import situations
from rank_probe.judge.verdict import (
    DUTY,
    NO_PEERS,
    NODE,
    WARMING_UP,
    Change,
    Late,
    Together,
    Verdict,
)
from rank_probe.wire.no_join import why_not_joined
from rank_probe.wire.snapshot import LEVEL_OFF
from rank_probe.wire.stages import STAGES, SYNC

# The join begins with the first step: a rank with more steps and no join will not get one.
BEGUN_STEPS: Final = 5
# As long as RankskewRanksMissing waits for ranks that were never seen: nodes of a large job start
# minutes apart.
UNSEEN_SECONDS: Final = 120.0
# The runbook for a rank that is late only because it does a duty for all.
CHECKPOINT_STALL: Final = "RankskewCheckpointStall"
# Waits that all ranks share, by stage: the advice, and the threshold (a share of the time) beyond
# which an alert is raised. For checkpoints that is a share of an hour, which is not known here.
SHARED: Final = {
    "data": ("input_starvation", "input_share"),
    "h2d": ("input_starvation", "input_share"),
    "checkpoint": ("checkpoint_stall", ""),
    "sync": ("common", "wait_share"),
}

OFF, NO_JOIN, JOIN_INCOMPLETE, NO_STEPS = "off", "no_join", "join_incomplete", "no_steps"


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """A job's *state* (in states.STATES), with a *sentence* and further *details* for people.

    *judge* says who judges the job: the join, or this node. *gpus_lost* by kind, *slowdown*, the
    *coverage* of the job's ranks and steps, *changes* (peer groups that became slower) and
    *together* (sets of late ranks) come from the judge and are empty without one. *change_causes*
    has the cause of each change by this node's past, None if unknown. While the job hangs, all its
    GPUs are lost. *first_action* is what to do first, None if nothing. *runbook* is that of the
    state. *alert* is the alert that Prometheus raises if the state lasts, None if there is none.
    *suspect* is the rank on another node for which a job that stands still waits, if any.
    """

    state: str
    sentence: str
    reason: str | None = None
    judge: str | None = None
    late: list[LateView] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    gpus_lost: dict[str, float] = field(default_factory=dict)
    slowdown: float | None = None
    coverage: float | None = None
    changes: list[Change] = field(default_factory=list)
    together: list[Together] = field(default_factory=list)
    change_causes: list[CauseView | None] = field(default_factory=list)
    first_action: str | None = None
    runbook: str | None = None
    alert: str | None = None
    suspect: dict[str, str] = field(default_factory=dict)


def job_verdict(
    job: NodeJob, ranks: Sequence[RankView], unprobed: int, causes: Causes
) -> JobVerdict:
    """Return the most urgent statement about *job*; *ranks* are its ranks on this node.

    *unprobed* of its ranks on this node run without the probe. *causes* knows why ranks are late.
    """
    said = _said(job, ranks, unprobed, causes)
    alert = said.alert or _alert(said, job)
    aged = job.verdict()
    far = far_suspect(job, ranks) if said.state == states.HUNG or said.reason == NO_STEPS else {}
    first = first_action(
        job.job_id, said.state, said.reason, said.late, ranks, alert, far, job.world_size
    )
    return replace(
        said,
        judge=None if aged is None else aged.judge,
        first_action=said.first_action or first,
        runbook=said.runbook or _runbook(said),
        alert=alert,
        suspect=far,
    )


def why_changed(said: JobVerdict, job_id: str, why_slower: WhySlower) -> JobVerdict:
    """Add to what was *said* of a job why it is slower than before, if this node can tell."""
    causes = [why_slower(job_id, change) for change in said.changes]
    told = [
        f"On this node, the cause of the longer {change.stage}: {cause.sentence}."
        for change, cause in zip(said.changes, causes, strict=True)
        if cause is not None
    ]
    views = [None if cause is None else view_cause(cause) for cause in causes]
    return replace(said, details=[*said.details, *told], change_causes=views)


def _alert(said: JobVerdict, job: NodeJob) -> str | None:
    is_slow = (job.starting_seconds or 0.0) > job.threshold("start_seconds")
    if said.state == states.STARTING and is_slow:
        return words.STATES[states.STARTING].runbook
    return _runbook(said) if said.reason != NO_PEERS and words.STATES[said.state].alerts else None


def _runbook(said: JobVerdict) -> str | None:
    kinds = {each.kind for each in said.late if each.is_called_late}
    is_duty = said.state == states.STRAGGLER and kinds == {DUTY}
    return CHECKPOINT_STALL if is_duty else words.STATES[said.state].runbook


def _said(job: NodeJob, ranks: Sequence[RankView], unprobed: int, causes: Causes) -> JobVerdict:
    running = [rank for rank in ranks if not rank.finished]
    if not running:
        steps = max(rank.steps for rank in ranks)
        return JobVerdict(states.FINISHED, f"Finished after {steps} steps.")
    if all(rank.silent for rank in running):
        return JobVerdict(
            states.RANKS_MISSING, silent_sentence(running), details=last_events(running)
        )
    if any(rank.level == LEVEL_OFF for rank in running):  # It counts no steps, so it cannot hang.
        return _not_judgeable(OFF)
    size = job.world_size or len(running)
    hung = hung_sentence(job, ranks, size)
    if hung:
        lost = {"hung": float(size)}
        said = JobVerdict(states.HUNG, hung, gpus_lost=lost, details=dumps_sentences(running))
    else:
        said = _with_missing(_progressing(job, running, causes), job, running, size, unprobed)
    more = [*_why_no_join(job), *_lines(running), *_limitations(job)]
    return replace(said, details=[*said.details, *more])


def _progressing(job: NodeJob, running: Sequence[RankView], causes: Causes) -> JobVerdict:
    """Describe a job that does not hang."""
    if job.starting_seconds is not None:
        age = duration(job.starting_seconds)
        started = f"Starting for {age}: no rank on this node has finished a step yet."
        return JobVerdict(states.STARTING, started, WARMING_UP, details=last_events(running))
    standing = standing_sentence(job, running)
    if standing:
        return JobVerdict(states.NOT_JUDGEABLE, standing, NO_STEPS)
    aged = job.verdict()
    if aged is None:
        said = _not_judgeable(_why_no_verdict(job))
    else:
        said = _judged(job, aged, running, causes)
    is_young = (job.run_seconds or 0.0) < job.threshold("start_seconds")
    if said.reason in (WARMING_UP, NO_JOIN, JOIN_INCOMPLETE) and (is_young or job.has_just_started):
        return replace(said, state=states.STARTING)
    return said


def _with_missing(
    said: JobVerdict, job: NodeJob, running: Sequence[RankView], size: int, unprobed: int
) -> JobVerdict:
    """Put ranks that do not report before what is *said* of the others."""
    beating = sum(not rank.silent for rank in running)
    if beating >= size:  # Complete: what is silent is left over from an earlier run.
        return said
    missing = []
    if beating < len(running):
        missing.append(silent_sentence(running))
    if unprobed:
        ranks = "1 rank runs" if unprobed == 1 else f"{unprobed} ranks run"
        missing.append(f"{ranks} on this node without the probe.")
    elif unseen := _unseen(job, running):
        missing.append(unseen_sentence(unseen, size))
    if not missing:
        return said
    gone = last_events([rank for rank in running if rank.silent])
    more = [*missing[1:], *gone, said.sentence, *said.details]
    said = replace(said, first_action=None, runbook=None, alert=None)  # Those of another state.
    return replace(said, state=states.RANKS_MISSING, sentence=missing[0], details=more)


def _unseen(job: NodeJob, running: Sequence[RankView]) -> int:
    """Return how many ranks of other nodes are in no step that the judge has seen."""
    aged = job.verdict()
    if aged is None or aged.verdict.reason is not None:
        return 0
    if (job.run_seconds or 0.0) < UNSEEN_SECONDS:
        return 0
    here = sum(rank.steps == 0 or rank.silent for rank in running)
    return max(0, aged.verdict.absent - here)


def _lines(running: Sequence[RankView]) -> list[str]:
    """Say where the late ranks of this node spend their time, in their code."""
    late = [rank for rank in running if rank.late_lines and not rank.silent]
    late = [rank for rank in late if rank.late_lines[0].stage != "sync"]  # It is not late.
    return [lines_sentence(rank.rank, rank.late_lines) for rank in late[:MOST_NAMES]]


def _limitations(job: NodeJob) -> list[str]:
    """Say what the probe cannot do with the torch of the ranks on this node."""
    said = dict.fromkeys(each for rank in job.beating for each in rank.snapshot.limitations)
    if not said:
        return []
    torch = job.beating[0].snapshot.runtime_info.get("torch", "")
    return [" ".join((f"torch {torch} lacks internal APIs that the probe uses.", *said))]


def _why_no_join(job: NodeJob) -> list[str]:
    """Say why the exporter of each node compares its own ranks, if one here knows."""
    why = job.no_join
    return [f"The ranks do not compare their steps: {why_not_joined(why)}."] if why else []


def _not_judgeable(reason: str) -> JobVerdict:
    yet = " yet" if reason == WARMING_UP else ""
    sentence = f"Cannot judge this job{yet}: {words.REASONS[reason].text}."
    return JobVerdict(states.NOT_JUDGEABLE, sentence, reason)


def _why_no_verdict(job: NodeJob) -> str:
    if job.world_size == 1:
        return NO_PEERS
    snapshots = [rank.snapshot for rank in job.beating]
    has_begun = any(each.joined_seconds is not None for each in snapshots)
    if has_begun and job.join_coverage is None:
        return WARMING_UP
    is_young = max(each.steps for each in snapshots) < BEGUN_STEPS
    return WARMING_UP if is_young and not has_begun else NO_JOIN


def _judged(
    job: NodeJob, aged: AgedVerdict, running: Sequence[RankView], causes: Causes
) -> JobVerdict:
    """Repeat the verdict of the job's judge."""
    verdict = aged.verdict
    size = job.world_size or len(running)
    judged = max(sum(verdict.ranks.values()), 1)
    late = _late(job, aged, running, size, causes)
    called_late = [each for each in late if each.is_called_late]

    def is_lost(kind: str, threshold: str) -> bool:
        return verdict.gpus_lost.get(kind, 0.0) > job.threshold(threshold) * judged

    together = verdict.stall_ratios if is_lost("shared", "gpus_lost_ratio") else {}
    if is_lost("common", "wait_share"):
        together[STAGES[SYNC]] = verdict.gpus_lost["common"] / judged
    if verdict.reason is not None:
        said = _not_judgeable(verdict.reason)
    elif job.is_partly_judged():
        said = _not_judgeable(JOIN_INCOMPLETE)
    elif called_late:
        is_node = any(each.kind == NODE for each in called_late)
        state = states.SLOW_NODE if is_node else states.STRAGGLER
        said = JobVerdict(state, late_sentence(called_late, size, aged.together))
    elif is_lost("pause", "gpus_lost_ratio"):
        said = JobVerdict(states.PAUSED, paused_sentence(verdict, aged.age_seconds))
    elif is_lost("rotating", "rotating_lost_ratio"):
        collecting = _collecting(job, verdict)
        first = advised("rotating_gc", job.job_id) if collecting else None
        sentence = rotating_sentence(verdict, collecting)
        said = JobVerdict(states.ROTATING, sentence, first_action=first)
    elif together:
        said = _shared(job, verdict, *max(together.items(), key=itemgetter(1)))
    else:
        said = JobVerdict(states.HEALTHY, even_sentence(aged, late))
    more = details(aged, late, job.join_coverage if aged.judge == JOIN else None)
    return replace(
        said,
        late=late,
        # The sentence may already contain a detail, beginning with a lower-case letter.
        details=[each for each in more if each[1:] not in said.sentence],
        gpus_lost=dict(verdict.gpus_lost),
        slowdown=verdict.slowdown,
        coverage=job.coverage,
        changes=aged.changes,
        together=aged.together,
    )


def _shared(job: NodeJob, verdict: Verdict, stage: str, share: float) -> JobVerdict:
    """Say what all ranks wait for together, for most of the time in *stage*."""
    said = JobVerdict(states.SHARED, shared_sentence(verdict, stage))
    if stage not in SHARED:
        return said
    advice, threshold = SHARED[stage]
    runbook = situations()[advice].runbook
    is_raised = threshold and share > job.threshold(threshold)
    first = advised(advice, job.job_id)
    return replace(said, first_action=first, runbook=runbook, alert=runbook if is_raised else None)


def _collecting(job: NodeJob, verdict: Verdict) -> float:
    """Return the share of garbage collection in the ranks' stops in turn; 0 if not over half."""
    turn = verdict.in_turn
    paused = [
        rank.snapshot.gc_pause_seconds / rank.snapshot.steps
        for rank in job.beating
        if rank.snapshot.gc_pause_seconds and rank.snapshot.steps
    ]
    if turn is None or not turn.every_steps or not turn.seconds or not paused:
        return 0.0
    share = min(fmean(paused) * turn.every_steps / turn.seconds, 1.0)
    return share if share > 0.5 else 0.0


def _late(
    job: NodeJob, aged: AgedVerdict, running: Sequence[RankView], size: int, causes: Causes
) -> list[LateView]:
    """Return the late ranks: first those called late, in each part the costliest first."""
    here = {rank.rank for rank in running}
    are_told = late_enough(aged.verdict.late, size, job.threshold)

    def cause_of(each: Late) -> CauseView | None:
        cause = causes(job.job_id, each.rank) if each.rank in here else told_cause(each.at)
        return None if cause is None else view_cause(cause)

    late = [
        view_late(
            each,
            aged.age_seconds,
            here,
            costs_enough=each.rank in are_told,
            cause=cause_of(each),
        )
        for each in aged.verdict.late
    ]
    return sorted(late, key=lambda each: not each.is_called_late)
