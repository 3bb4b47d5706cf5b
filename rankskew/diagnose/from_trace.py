"""The report on a recorded trace: the judge's findings, the accounting, and the stages."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from exporter.causes.explain import explain
from exporter.causes.model import Evidence, Lateness, Quantiles
from exporter.errors import UsageError
from exporter.live import states
from exporter.live.causes import CauseView, view_cause
from exporter.live.sentences import LateView
from exporter.live.wording import duration, listed
from rank_probe.judge.verdict import DUTY, MILD, NODE, PAUSES, UNSYNCED
from rank_probe.wire.stages import STAGES, SYNC
from rankskew.accounting.step import quantile
from rankskew.diagnose.findings import (
    late_finding,
    loss_finding,
    mild,
    not_judgeable,
    ordered,
    report,
)
from rankskew.diagnose.model import CannotTell, Event, Finding, JobFacts, Place, Report
from rankskew.replay.findings import CHANGE, INFO, OF_THE_JOB
from rankskew.replay.findings import TraceFinding as Found
from rankskew.replay.replay import Replay, replay
from rankskew.replay.traces import Run, instance, read_traces, run_of
from rankskew.top.model import JobStatus
from rankskew.wording import counted

NO_HARDWARE = "A trace has no data on GPUs, nodes and processes, in which most causes show."

SYNC_STAGE: Final = STAGES[SYNC]
THIRDS: Final = (1 / 3, 1 / 2, 2 / 3)


def read_trace(path: Path, job_id: str | None, scale: float = 1.0) -> Report:
    """Return the report on the trace at *path*, *scale* times slower; raises CannotTell."""
    try:
        run = run_of(read_traces([path]), job_id)
    except UsageError as error:
        raise CannotTell(f"{str(error)[:1].upper()}{str(error)[1:]}.") from error
    one = replay(run, scale)
    facts = _job_facts(one)
    told = [found for found in one.findings if found.kind != CHANGE and not _is_little(found)]
    findings = ordered([_finding(facts, one, found) for found in told])
    findings += not_judgeable(facts) if facts.reasons else []
    unjudged = [*([NO_HARDWARE] if findings else []), *_left_out(one)]
    return replace(
        report(facts, str(path), None, findings, mild(facts.job.late), _changes(one)),
        covers_seconds=one.seconds,
        unjudged=tuple(unjudged),
    )


def _job_facts(one: Replay) -> JobFacts:
    seconds = one.found.seconds if one.found else 0.0
    kinds = asdict(one.kinds) if one.kinds and one.synced and seconds else {}
    late_gpus: dict[int, dict[str, float]] = defaultdict(dict)
    for (rank, stage), caused in (one.found.caused if one.found and seconds else {}).items():
        if rank in one.named:
            late_gpus[rank][stage] = caused / seconds
    state = _state(one)
    of = f"{counted(one.whole_steps, 'step')} of {counted(len(one.run.times), 'rank')}"
    steps = f"{of} in {duration(one.seconds)}"
    is_even = state == states.HEALTHY and not one.findings
    job = JobStatus(
        one.run.job_id,
        state=state,
        sentence=f"{steps}; no rank is late." if is_even else f"{steps}.",
        world_size=len(one.run.times),
        lost_by_kind={kind: paid / seconds for kind, paid in kinds.items()},
        late=[each for found in one.findings if _is_little(found) for each in _late(one, found)],
        slowdown=one.slowdown if one.named else None,
    )
    places = {
        rank: Place(node=instance(node).partition(":")[0] or None)
        for rank, node in one.run.nodes.items()
    }
    return JobFacts(job, places, late_gpus=late_gpus, reasons=one.not_judgeable)


def _state(one: Replay) -> str:
    kinds = {finding.kind for finding in one.findings}
    if one.not_judgeable:
        return states.NOT_JUDGEABLE
    if NODE in kinds:
        return states.SLOW_NODE
    if kinds & {"persistent", PAUSES} or any(found.severity != INFO for found in one.findings):
        return states.STRAGGLER
    return states.ROTATING if "rotating" in kinds else states.HEALTHY


def _finding(facts: JobFacts, one: Replay, found: Found) -> Finding:
    if found.kind in OF_THE_JOB:
        gpus = found.gpus_lost or 0.0
        finding = loss_finding(found.kind, gpus, len(one.run.times), found.stage)
        finding = replace(finding, peer_group=found.peer_group)
    else:
        late = _late(one, found)
        finding = replace(late_finding(facts, late), gpus_lost=found.gpus_lost)
        if found.kind == UNSYNCED:
            finding = replace(finding, what="unsynced", sentence=next(mild(late)))
    until = None if found.cleared_s is None else one.seconds - found.cleared_s
    return replace(finding, since_seconds=one.seconds - found.onset_s, until_seconds=until)


def _is_little(found: Found) -> bool:
    """Whether the rank is a little late, or does something for all that costs little."""
    return found.kind == MILD or (found.kind == DUTY and found.severity == INFO)


def _late(one: Replay, found: Found) -> list[LateView]:
    cause = _cause(one, found)
    return [
        LateView(
            rank=rank,
            peer_group=one.run.peer_groups[rank],
            stage=found.stage or "",
            kind=found.kind,
            ratio=found.ratio or 0.0,
            gpus_lost=(found.gpus_lost or 0.0) / len(found.ranks),
            late_for_seconds=one.seconds - found.onset_s,
            is_here=True,
            cause=cause,
            has_risen=found.has_risen,
            costs_enough=not _is_little(found),
            every_steps=found.every_steps,
            pause_seconds=found.pause_seconds,
        )
        for rank in found.ranks
    ]


# ---- The cause ---------------------------------------------------------------------------------


def _cause(one: Replay, found: Found) -> CauseView | None:
    """Return what the mean step while it lasted says, compared with that of each peer."""
    begin = one.begin_s + found.onset_s / one.scale
    end = one.begin_s + (one.seconds if found.cleared_s is None else found.cleared_s) / one.scale
    groups = {one.run.peer_groups[rank] for rank in found.ranks}
    costs: dict[str, float] = defaultdict(float)
    for (rank, stage), seconds in (one.found.caused if one.found else {}).items():
        costs[stage] += seconds if rank in found.ranks else 0.0
    means = {
        rank: _figures(one.run, rank, begin, end)
        for rank in one.run.times
        if one.run.peer_groups[rank] in groups and (rank in found.ranks or rank not in one.named)
    }
    own = [means.pop(rank) for rank in found.ranks]
    names = {name for each in own for name in each}
    figures = {name: fmean(each.get(name, 0.0) for each in own) for name in names}
    stage = found.stage or ""
    late = Lateness(stage, found.kind, found.ratio or 0.0, costs or {stage: 1.0})
    cause = explain(late, Evidence(figures), _quantiles([mean for mean in means.values() if mean]))
    return None if cause is None else view_cause(cause)


def _figures(run: Run, rank: int, begin: float, end: float) -> dict[str, float]:
    """Return the mean time in each stage of the steps in between, as the probe's figures."""
    steps = [run.steps[step][rank] for step, at in run.times[rank].items() if begin <= at <= end]
    stages = {stage for step in steps for stage in step} - {SYNC_STAGE}
    return {f"{stage}_seconds": fmean(step.get(stage, 0.0) for step in steps) for stage in stages}


def _quantiles(peers: Sequence[Mapping[str, float]]) -> dict[str, Quantiles]:
    """Return the figures of the *peers*; who has no such stage spends no time in it."""
    return {
        name: Quantiles(
            *(quantile(share, [each.get(name, 0.0) for each in peers]) for share in THIRDS)
        )
        for name in sorted({name for each in peers for name in each})
    }


# ---- Sentences ---------------------------------------------------------------------------------


def _changes(one: Replay) -> Iterator[Event]:
    for found in one.findings:
        if found.kind == CHANGE:
            yield Event(
                one.seconds - found.onset_s,
                f"{found.stage} of peer group {found.peer_group} takes {found.ratio or 0:.1f} "
                "times as long as before.",
            )


def _left_out(one: Replay) -> Iterator[str]:
    if one.left_out:
        names = listed([str(rank) for rank in one.left_out])
        yield f"Ranks {names} have too few steps to be judged."
    if one.confidence:
        yield f"{one.confidence[:1].upper()}{one.confidence[1:]}."
    if not one.synced and one.whole_steps:
        yield "No wait in collectives was measured, so the loss is not known."
