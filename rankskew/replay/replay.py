"""`rankskew replay`: judge recorded traces, and report which ranks were slow and the cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from exporter.live.sentences import is_slower
from exporter.live.wording import sentence, their
from rankskew.accounting.step import Account, account, kinds, slowdown
from rankskew.diagnose.findings import loss
from rankskew.diagnose.render import loss_section
from rankskew.render import Document
from rankskew.replay.findings import NAMING, TraceFinding, apart, findings, not_judgeable
from rankskew.replay.judge import confidence, judge
from rankskew.replay.traces import Run, has_sync, instance, stretches, timeline
from rankskew.wording import clock, counted, named_ranks

# The rules' reason for ranks that share too few steps.
NO_WHOLE_STEPS: Final = "join_incomplete"


@dataclass(frozen=True, kw_only=True)
class ReplayedJob:
    """What is found of one attempt of a job."""

    job_id: str
    """Id of the job."""
    attempt: int
    """Number of the attempt, 0 at first, and for files that the probe did not name."""
    ranks: int
    """How many ranks have rows."""
    steps: int
    """How many steps any rank has a row of."""
    whole_steps: int
    """How many of these have every rank that was present."""
    left_out: Sequence[int]
    """Ranks with too few rows to be judged."""
    stretches: int
    """How many periods in which the ranks stay the same, each judged by itself."""
    seconds: float
    """Length of the run in seconds, times --time-scale."""
    time_scale: float
    """How many times longer the run was made than it took."""
    waits_are_measured: bool
    """Whether any wait was; without, all ranks are taken to have waited for the slowest."""
    gpus_lost: float | None
    """GPUs that did nothing but wait, a mean of the run; null if no step has every rank."""
    gpus_lost_by_kind: Mapping[str, float]
    """The same by kind, which add up: group, persistent, pause, rotating, noise, common, shared."""
    gpus_lost_by_rank: Mapping[int, Mapping[str, float]]
    """Those that waited for each rank that is late, by stage."""
    slowdown: float | None
    """Time of the run over that without the named ranks' excess; null if nothing was judged."""
    source: Literal["judge", "none"]
    """Who named the ranks; none if nothing could be judged."""
    not_judgeable: Sequence[str]
    """Why ranks could not be judged, in half of the verdicts or more: no_sync, no_peers,
    no_busy_time, warming_up (too few steps) or join_incomplete (no step has all ranks); empty if
    they could.
    """
    confidence: str | None
    """Says in how few steps it was seen; null if these were enough."""
    findings: Sequence[TraceFinding]
    """What was slow, by onset; unsynced ranks come first, by their lasting excess."""


@dataclass(frozen=True, slots=True)
class ReplayedJobs:
    """What is found in the traces."""

    jobs: Sequence[ReplayedJob]
    """Each attempt of each job in the traces."""


def replay(run: Run, scale: float = 1.0) -> ReplayedJob:
    """Replay *run*, *scale* times slower than recorded."""
    line = timeline(run, scale)
    parts = stretches(run, line)
    judged = judge(run, line, parts)
    instances = {rank: instance(node) for rank, node in run.nodes.items()}
    found = findings(judged, instances)
    named = _named(found)
    whole = [
        {rank: run.steps[step][rank] for rank in part.ranks}
        for part in parts
        for step in part.steps
    ]
    paid = account(whole, run.peer_groups)
    is_measured = has_sync(run)
    lost = {
        kind: seconds / (paid.seconds or 1.0)
        for kind, seconds in kinds(paid, named).items()
        # Without measured waits nothing is known about communication.
        if whole and (is_measured or kind != "common")
    }
    lost = apart(lost, found, judged) if lost else lost
    by_rank: dict[int, dict[str, float]] = {}
    for (rank, stage), seconds in paid.caused.items():
        if rank in named:
            by_rank.setdefault(rank, {})[stage] = seconds / paid.seconds
    is_judged = any(verdict.reason is None for one in judged for _, verdict in one.verdicts)
    return ReplayedJob(
        job_id=run.job_id,
        attempt=run.attempt,
        ranks=len(run.times),
        steps=len(run.steps),
        whole_steps=len(whole),
        left_out=sorted(run.times.keys() - {rank for part in parts for rank in part.ranks}),
        stretches=len(parts),
        seconds=line.seconds,
        time_scale=scale,
        waits_are_measured=is_measured,
        gpus_lost=sum(lost.values()) if whole else None,
        gpus_lost_by_kind=lost,
        gpus_lost_by_rank=by_rank,
        slowdown=slowdown(whole, run.peer_groups, named) if is_judged else None,
        source="judge" if is_judged else "none",
        not_judgeable=not_judgeable(judged) if whole else [NO_WHOLE_STEPS],
        confidence=confidence(max((len(part.steps) for part in parts), default=0)),
        findings=[_with_group(one, paid, run.peer_groups) for one in found],
    )


def _with_group(finding: TraceFinding, paid: Account, peer_groups: dict[int, str]) -> TraceFinding:
    """Return a *finding* of unequal groups with the heaviest one, which waits least for others."""
    if finding.kind != "group":
        return finding
    waits = {name: 0.0 for name in sorted(set(peer_groups.values()))}
    for rank, seconds in paid.unequal.items():
        waits[peer_groups[rank]] = max(waits[peer_groups[rank]], seconds)
    return replace(finding, peer_group=min(waits, key=lambda name: waits[name]))


def _named(found: Sequence[TraceFinding]) -> set[int]:
    """Return the ranks that others wait for."""
    return {rank for one in found if one.kind in NAMING for rank in one.ranks}


# ---- Words -------------------------------------------------------------------------------------


def in_words(one: ReplayedJob) -> Document:
    """Return *one* for people: what was found, and what that cost."""
    of = f"{counted(one.whole_steps, 'step')} of {counted(one.ranks, 'rank')}"
    scale = one.time_scale
    scaled = "" if scale == 1 else f", which is {scale:g} times as long as it took"
    more = one.steps - one.whole_steps
    others = f" ({more} more lack a rank and are left out)" if more else ""
    title = f"job {one.job_id}, attempt {one.attempt}: {of} in {clock(one.seconds)}{scaled}{others}"
    if one.gpus_lost is None:
        unknown = "No step has all ranks, so the loss is not known."
        return Document(title, [*_sentences(one), unknown], [])
    what = "Lost to waiting" if one.waits_are_measured else "Lost, if all waited for the slowest"
    cost = f"{what}: {one.gpus_lost:.2f} of {one.ranks - len(one.left_out)} GPUs."
    whole = loss(one.gpus_lost_by_kind, one.gpus_lost_by_rank)
    return Document(title, list(_sentences(one)), [loss_section(cost, whole)])


def _sentences(one: ReplayedJob) -> Iterator[str]:
    if one.left_out:
        yield f"{sentence(named_ranks(one.left_out))} left out: too few rows to judge."
    if one.stretches > 1:
        yield f"Ranks come and go; {one.stretches} periods with the same ranks are judged each."
    for finding in one.findings:
        end = "the end" if finding.cleared_s is None else clock(finding.cleared_s)
        yield f"{clock(finding.onset_s)} to {end}: {_finding(finding)}"
    if not one.findings:
        yield "Nothing found."
    if one.confidence:
        yield f"{sentence(one.confidence)}."
    if one.not_judgeable:
        yield f"Not judgeable: {', '.join(one.not_judgeable)}."
    named = _named(one.findings)
    if named and is_slower(one.slowdown):
        yield (
            f"Slowdown: {one.slowdown:.3f} times what it would take with {named_ranks(named)} as "
            f"fast as {their(len(named))} peers."
        )


def _finding(finding: TraceFinding) -> str:
    notes = [finding.severity, f"named at {clock(finding.named_s)}"]
    if finding.ranks and finding.ratio is not None:
        notes = [f"by {finding.ratio:.0%}", f"on {finding.instance}", *notes]
    elif finding.kind == "group":
        notes = [f"peer group {finding.peer_group}", *notes]
    return f"{finding.sentence.removesuffix('.')} ({', '.join(notes)})."
