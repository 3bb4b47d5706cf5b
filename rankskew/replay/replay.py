"""`rankskew replay`: judge recorded traces, and report which ranks were slow and the cost."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal

from exporter.live.sentences import is_slower, pausing
from exporter.vocabulary.thresholds import Thresholds
from exporter.vocabulary.words import slow_at
from rank_probe.judge.verdict import MOST_LATE
from rank_probe.wire.document import as_document
from rankskew.accounting.run import Account, Kinds, account, kinds, slowdown
from rankskew.replay.findings import NAMING, TraceFinding, findings, not_judgeable
from rankskew.replay.judge import Progress, confidence, judge
from rankskew.replay.traces import (
    Run,
    TraceStretch,
    has_sync,
    instance,
    left_out,
    stretches,
    timeline,
)
from rankskew.wording import clock, counted, named_ranks

# The rules' reason for ranks that share too few steps.
NO_WHOLE_STEPS: Final = "join_incomplete"
# Below this share of the whole loss, the loss that a rank causes in a stage is noise.
SMALLEST_PART: Final = 0.01
# How many of the ranks that are late in turn get a line each.
MOST_IN_TURN: Final = 5
MOST_STRETCHES: Final = 8


@dataclass(frozen=True, slots=True)
class StretchOfRanks:
    """A period in which the ranks stay the same."""

    begin_s: float
    """Scaled seconds from the run's begin to that of the period."""
    end_s: float
    """Scaled seconds from the run's begin to the end of the period."""
    ranks: int
    """How many ranks were present."""
    whole_steps: int
    """How many steps all of them have."""


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
    stretches: Sequence[StretchOfRanks]
    """Periods in which the ranks stay the same, each judged by itself."""
    begin_s: float
    """time_s at which the run begins, not scaled."""
    seconds: float
    """Length of the run in seconds, times --time-scale."""
    gpus_lost: float | None
    """GPUs that did nothing but wait, a mean of the run; null if no step has every rank."""
    gpus_lost_by_kind: Kinds | None
    """The same GPUs by kind, which add up; null if no wait was measured."""
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


@dataclass(frozen=True, kw_only=True)
class Replay(ReplayedJob):
    """What is found of *run*, and what it is made from.

    *found* and *kinds* are not scaled and cover the whole steps. *synced* is whether any wait was
    measured, *parts* are the stretches, *named* the ranks that are late.
    """

    run: Run
    parts: Sequence[TraceStretch]
    scale: float
    synced: bool
    named: frozenset[int]
    found: Account
    kinds: Kinds

    @property
    def is_judged(self) -> bool:
        """Return whether any verdict names ranks."""
        return self.source == "judge"


def replay(run: Run, scale: float = 1.0, progress: Progress = lambda share: None) -> Replay:
    """Replay *run*, *scale* times slower than recorded."""
    line = timeline(run, scale)
    parts = stretches(run, line)
    judged = judge(run, line, parts, progress)
    instances = {rank: instance(node) for rank, node in run.nodes.items()}
    found = findings(judged, instances, Thresholds().value)
    named = frozenset(rank for one in found if one.kind in NAMING for rank in one.ranks)
    whole = [
        {rank: run.steps[step][rank] for rank in part.ranks}
        for part in parts
        for step in part.steps
    ]
    paid = account(whole, run.peer_groups)
    split, synced = kinds(paid, named), has_sync(run)
    # As measured, or else as computed.
    lost = split.lost if synced else sum(paid.waited.values())
    is_judged = any(verdict.reason is None for one in judged for _, verdict in one.verdicts)
    return Replay(
        job_id=run.job_id,
        attempt=run.attempt,
        ranks=len(run.times),
        steps=len(run.steps),
        whole_steps=len(whole),
        left_out=left_out(run, parts),
        stretches=[
            StretchOfRanks(part.begin, part.end, len(part.ranks), len(part.steps)) for part in parts
        ],
        begin_s=line.origin_seconds,
        seconds=line.seconds,
        gpus_lost=lost / paid.seconds if paid.seconds else None,
        gpus_lost_by_kind=split.over(paid.seconds) if paid.seconds and synced else None,
        slowdown=slowdown(whole, run.peer_groups, named) if is_judged else None,
        source="judge" if is_judged else "none",
        not_judgeable=not_judgeable(judged) if whole else [NO_WHOLE_STEPS],
        confidence=confidence(max((len(part.steps) for part in parts), default=0)),
        findings=[_with_group(one, paid, run.peer_groups) for one in found],
        run=run,
        parts=parts,
        scale=scale,
        synced=synced,
        named=named,
        found=paid,
        kinds=split,
    )


def as_json(replays: Sequence[Replay]) -> str:
    """Return *replays* for scripts; docs/replay.md describes the fields."""
    return as_document("replay", {"jobs": [job(one) for one in replays]})


def job(one: Replay) -> dict[str, Any]:
    """Return one entry of the JSON, with times in milliseconds, the precision of a trace."""
    found = ReplayedJob(**{each.name: getattr(one, each.name) for each in fields(ReplayedJob)})
    return dict(_rounded(asdict(found)))


def _rounded(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    is_time = isinstance(value, float) and name.endswith(("_s", "seconds"))
    return round(value, 3) if is_time else value


def _with_group(finding: TraceFinding, paid: Account, peer_groups: dict[int, str]) -> TraceFinding:
    """Return a *finding* of unequal groups with the heaviest one, which waits least for others."""
    if finding.kind != "group":
        return finding
    waits = {name: 0.0 for name in sorted(set(peer_groups.values()))}
    for rank, seconds in paid.unequal.items():
        waits[peer_groups[rank]] = max(waits[peer_groups[rank]], seconds)
    return replace(finding, peer_group=min(waits, key=lambda name: waits[name]))


# ---- Words -------------------------------------------------------------------------------------


def report(replays: Sequence[Replay]) -> str:
    """Return *replays* as text for a person."""
    return "\n\n".join("\n".join(_report(one)) for one in replays)


def _report(one: Replay) -> Iterator[str]:
    of = f"{counted(one.whole_steps, 'step')} of {counted(one.ranks, 'rank')}"
    scaled = "" if one.scale == 1 else f", which is {one.scale:g} times as long as it took"
    more = one.steps - one.whole_steps
    others = f" ({more} more lack a rank and are left out)" if more else ""
    yield f"job {one.job_id}, attempt {one.attempt}: {of} in {clock(one.seconds)}{scaled}{others}"
    yield from _stretches(one)
    for finding in one.findings:
        yield f"  {_period(finding.onset_s, finding.cleared_s)}: {_finding(finding)}"
    if not one.findings:
        yield "  nothing found"
    if one.confidence:
        yield f"  {one.confidence}"
    if one.not_judgeable:
        yield f"  not judgeable: {', '.join(one.not_judgeable)}"
    if one.named and is_slower(one.slowdown):
        yield (
            f"  slowdown: {one.slowdown:.3f} times what it would take with "
            f"{named_ranks(one.named)} as fast as {'its' if len(one.named) == 1 else 'their'} peers"
        )
    if not one.whole_steps:
        yield "  no step has all ranks, so the loss is not known"
        return
    yield from _lost(one)
    yield from _groups(one.found, one.run.peer_groups)


# ---- What was found ----------------------------------------------------------------------------


def _stretches(one: Replay) -> Iterator[str]:
    if one.left_out:
        yield f"  {named_ranks(one.left_out)} left out: too few rows to judge"
    if len(one.stretches) > 1:
        yield "  ranks come and go; each period with the same ranks is judged separately:"
        for part in one.stretches[:MOST_STRETCHES]:
            yield (
                f"    {_period(part.begin_s, part.end_s)}: {counted(part.whole_steps, 'step')} of "
                f"{counted(part.ranks, 'rank')}"
            )
        if len(one.stretches) > MOST_STRETCHES:
            yield f"    and {len(one.stretches) - MOST_STRETCHES} more"


def _finding(finding: TraceFinding) -> str:
    said = _words(finding)
    if finding.gpus_lost is not None:
        said += f"; {finding.gpus_lost:.2f} GPUs lost"
    return f"{said} ({finding.severity}, named at {clock(finding.named_s)})"


def _words(finding: TraceFinding) -> str:
    doing = slow_at(finding.stage) if finding.stage else ""
    more = f"{finding.ratio:.0%}" if finding.ratio is not None else ""
    who = f"rank {finding.rank} of peer group {finding.peer_group} on {finding.instance}"
    match finding.kind:
        case "change":
            return (
                f"{finding.stage} of {_slower(finding)}peer group {finding.peer_group} takes "
                f"{finding.ratio:.1f} times as long as until {clock(finding.onset_s)}"
            )
        case "rotating":
            return f"a different rank is slow {doing} in each step"
        case "group":
            return f"peer group {finding.peer_group} has more work than the others"
        case "common":
            return "all ranks wait for communication"
        case "node":
            return f"{finding.instance} is slow {doing}, by {more}: {named_ranks(finding.ranks)}"
        case "pauses" | "duty":
            how = finding.kind, finding.stage or "", finding.every_steps, finding.pause_seconds
            return f"{who} {pausing(*how)}, for {more} of its time"
        case "mild":
            return f"{who} is a little slow {doing}, by {more}"
        case "unsynced":
            than = "before" if finding.has_risen else "its peers"
            return f"{who} is slow {doing}, by {more} more than {than}, but no wait was measured"
    return f"{who} is slow {doing}, by {more}"


def _slower(finding: TraceFinding) -> str:
    """Name the ranks of the peer group that are slower, if not all are; no more are known."""
    if not finding.slower_ranks:
        return ""
    least = "at least " if len(finding.slower_ranks) == MOST_LATE else ""
    return f"{least}{named_ranks(finding.slower_ranks)} of "


# ---- What it cost ------------------------------------------------------------------------------


def _lost(one: Replay) -> Iterator[str]:
    """Yield the loss and its four kinds, which add up to it."""
    found, split = one.found, one.kinds
    computed = sum(found.waited.values())
    what = "lost to waiting" if one.synced else "lost, if all ranks waited for the slowest"
    total = split.lost if one.synced else computed
    yield f"  {what}: {_cost(total, found)} of {len(found.waited)}"
    yield f"    for late ranks (persistent): {_cost(split.persistent, found)}"
    yield from _caused(found, one.named, computed)
    yield f"    for a different rank each time (rotating): {_cost(split.rotating, found)}"
    others = found.waited.keys() - one.named
    yield from list(_caused(found, others, computed))[:MOST_IN_TURN]
    yield f"    for heavier peer groups (group): {_cost(split.group, found)}"
    if one.synced:
        yield f"    for communication, all ranks alike (common): {_cost(split.common, found)}"


def _caused(found: Account, ranks: Collection[int], lost: float) -> Iterator[str]:
    """Yield the loss that each of *ranks* caused in each stage, largest first."""
    shown = [
        (seconds, rank, stage)
        for (rank, stage), seconds in found.caused.items()
        if rank in ranks and seconds >= SMALLEST_PART * lost
    ]
    for seconds, rank, stage in sorted(shown, key=lambda each: (-each[0], each[1], each[2])):
        yield f"      rank {rank} in {stage}: {_cost(seconds, found)}"


def _groups(found: Account, peer_groups: dict[int, str]) -> Iterator[str]:
    judged = {rank: peer_groups[rank] for rank in found.waited}
    for name in sorted(set(judged.values())):
        ranks = sorted(rank for rank, group in judged.items() if group == name)
        waited = sum(found.waited[rank] for rank in ranks)
        least = min(ranks, key=lambda rank: found.waited[rank])
        yield (
            f"  peer group {name}: {counted(len(ranks), 'rank')} waited {_cost(waited, found)} "
            f"for the slowest; rank {least} the least, {found.waited[least]:.2f} s"
        )


def _cost(gpu_seconds: float, found: Account) -> str:
    return f"{gpu_seconds:.2f} GPU-seconds, {gpu_seconds / (found.seconds or 1.0):.3f} GPUs"


def _period(begin: float, end: float | None) -> str:
    return f"{clock(begin)} to {'the end' if end is None else clock(end)}"
