"""The report on a recorded trace: the judge's findings, the accounting, and the stages."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from exporter.accounting.step import quantile
from exporter.advice import advice, situations
from exporter.causes.explain import explain
from exporter.causes.model import UNKNOWN, Evidence, Lateness, Quantiles
from exporter.diagnose.advise import advised
from exporter.diagnose.late import explained
from exporter.diagnose.loss import loss
from exporter.diagnose.model import CannotTell, Event, Finding, Place, Report, ordered
from exporter.errors import UsageError
from exporter.live import states
from exporter.live.sentences import DOING, duration, listed
from exporter.replay.findings import CHANGE, OF_THE_JOB
from exporter.replay.findings import Finding as Found
from exporter.replay.replay import Replay, replay
from exporter.replay.traces import Run, read_traces, run_of
from rank_probe.stages import STAGES, SYNC
from rank_probe.verdict import MILD, NODE, PAUSES, UNSYNCED

NO_HARDWARE = "A trace has no data on GPUs, nodes and processes, in which most causes show."

SYNC_STAGE: Final = STAGES[SYNC]


def read_trace(path: Path, job_id: str | None, scale: float = 1.0) -> Report:
    """Return the report on the trace at *path*, *scale* times slower; raises CannotTell."""
    try:
        run = run_of(read_traces([path]), job_id)
    except UsageError as error:
        raise CannotTell(f"{str(error)[:1].upper()}{str(error)[1:]}.") from error
    return trace_report(replay(run, scale), str(path))


def trace_report(one: Replay, source: str) -> Report:
    """Return the report on a replayed run."""
    kinds = asdict(one.kinds) if one.kinds and one.synced else {}
    seconds = one.found.seconds if one.found else 0.0
    lost = {kind: paid / seconds for kind, paid in kinds.items()} if seconds else {}
    findings = ordered([each for found in one.findings for each in _findings(one, found)])
    findings += [
        Finding(reason, f"The job cannot be judged: {situations()[reason].text}.")
        for reason in one.not_judgeable
        if reason in situations()
    ]
    state = _state(one)
    return Report(
        source=source,
        job_id=one.run.job_id,
        state=state,
        sentence=_sentence(one, state),
        covers_seconds=one.seconds,
        world_size=len(one.run.times),
        loss=loss(lost, _by_rank(one)) if lost else None,
        slowdown=one.slowdown if one.named else None,
        findings=tuple(advised(each, one.run.job_id) for each in findings),
        more=tuple(_mild(one)),
        events=tuple(_changes(one)),
        unjudged=(NO_HARDWARE, *_left_out(one)) if findings else tuple(_left_out(one)),
    )


def _state(one: Replay) -> str:
    kinds = {finding.kind for finding in one.findings}
    if one.not_judgeable:
        return states.NOT_JUDGEABLE
    if NODE in kinds:
        return states.SLOW_NODE
    if kinds & {"persistent", PAUSES}:
        return states.STRAGGLER
    return states.ROTATING if "rotating" in kinds else states.HEALTHY


def _sentence(one: Replay, state: str) -> str:
    steps = f"{one.whole_steps} steps of {len(one.run.times)} ranks in {duration(one.seconds)}"
    if state == states.HEALTHY and not one.findings:
        return f"{steps}; no rank is late."
    return f"{steps}."


def _findings(one: Replay, found: Found) -> Iterator[Finding]:
    if found.kind in (MILD, CHANGE):
        return
    since, until = one.seconds - found.onset_s, None
    if found.cleared_s is not None:
        until = one.seconds - found.cleared_s
    if found.kind in OF_THE_JOB:
        yield Finding(
            found.kind,
            _of_the_job(found),
            peer_group=found.peer_group,
            stage=found.stage,
            kind=found.kind,
            gpus_lost=found.gpus_lost,
            since_seconds=since,
            until_seconds=until,
        )
        return
    finding = Finding(
        what=UNKNOWN,
        sentence=_late(found),
        rank=found.rank,
        ranks=found.ranks,
        peer_group=found.peer_group,
        place=Place(node=(found.instance or "").partition(":")[0] or None),
        stage=found.stage,
        kind=found.kind,
        ratio=found.ratio,
        gpus_lost=found.gpus_lost,
        since_seconds=since,
        until_seconds=until,
        cause=UNKNOWN,
        cause_text=advice()[UNKNOWN].text,
    )
    late = Lateness(found.stage or "", found.kind, found.ratio or 0.0, _costs(one, found))
    own, peers = _stages(one, found)
    cause = explain(late, Evidence(_figures(own)), _quantiles(peers))
    finding = finding if cause is None else explained(finding, cause)
    yield replace(finding, what="unsynced") if found.kind == UNSYNCED else finding


def _late(found: Found) -> str:
    doing = DOING.get(found.stage or "", f"in {found.stage}")
    many = f"{found.ratio or 0:.0%}"
    if found.kind == NODE:
        names = listed([str(rank) for rank in found.ranks])
        return f"The ranks of {found.instance}, {names}, are slow {doing}, by {many}."
    if found.kind == PAUSES:
        return f"Rank {found.rank} pauses now and then {doing}, for {many} of its time."
    if found.kind == UNSYNCED:
        return f"Rank {found.rank} is slow {doing}, by {many}, but no wait was measured."
    return f"Rank {found.rank} is slow {doing}, by {many}."


def _of_the_job(found: Found) -> str:
    if found.kind == "rotating":
        return f"Another rank is slow {DOING.get(found.stage or '', '')} in each step."
    if found.kind == "group":
        return f"Peer group {found.peer_group} has more work than the others."
    return "All ranks wait for communication."


def _costs(one: Replay, found: Found) -> dict[str, float]:
    """Return what the ranks of *found* cost, by stage; that of its stage alone if not known."""
    costs: dict[str, float] = defaultdict(float)
    for (rank, stage), seconds in (one.found.caused if one.found else {}).items():
        if rank in found.ranks:
            costs[stage] += seconds
    return costs or {found.stage or "": 1.0}


def _by_rank(one: Replay) -> dict[int, dict[str, float]]:
    lost: dict[int, dict[str, float]] = defaultdict(dict)
    if one.found is not None:
        for (rank, stage), seconds in one.found.caused.items():
            if rank in one.named:
                lost[rank][stage] = seconds / one.found.seconds
    return lost


def _stages(one: Replay, found: Found) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Return the mean step while it lasted: of the ranks of *found*, and of each peer."""
    begin = one.begin_s + found.onset_s / one.scale
    end = one.begin_s + (one.seconds if found.cleared_s is None else found.cleared_s) / one.scale
    groups = {one.run.peer_groups[rank] for rank in found.ranks}
    means = {
        rank: _mean(one.run, rank, begin, end)
        for rank in one.run.times
        if one.run.peer_groups[rank] in groups and (rank in found.ranks or rank not in one.named)
    }
    own = [means[rank] for rank in found.ranks]
    mine = {
        stage: fmean(each.get(stage, 0.0) for each in own) for stage in {s for e in own for s in e}
    }
    return mine, [mean for rank, mean in means.items() if rank not in found.ranks and mean]


def _figures(stages: Mapping[str, float]) -> dict[str, float]:
    """Return the mean time in each of *stages* as the figures that a probe reports."""
    return {f"{stage}_seconds": seconds for stage, seconds in stages.items() if stage != SYNC_STAGE}


def _quantiles(peers: Sequence[Mapping[str, float]]) -> dict[str, Quantiles]:
    """Return the figures of the *peers*; who has no such stage spends no time in it."""
    found = {}
    for stage in sorted({stage for each in peers for stage in each} - {SYNC_STAGE}):
        times = [each.get(stage, 0.0) for each in peers]
        lower, middle, upper = (quantile(share, times) for share in (1 / 3, 1 / 2, 2 / 3))
        found[f"{stage}_seconds"] = Quantiles(lower, middle, upper)
    return found


def _mean(run: Run, rank: int, begin: float, end: float) -> dict[str, float]:
    steps = [run.steps[step][rank] for step, at in run.times[rank].items() if begin <= at <= end]
    stages = {stage for step in steps for stage in step}
    return {stage: fmean(step.get(stage, 0.0) for step in steps) for stage in stages}


def _mild(one: Replay) -> Iterator[str]:
    for found in one.findings:
        if found.kind == MILD and found.rank not in one.named - {found.rank}:
            yield (
                f"Rank {found.rank} is a little slow {DOING.get(found.stage or '', '')}, by "
                f"{found.ratio or 0:.1%}, too little for an alert."
            )


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
    if not one.synced and one.whole_steps:
        yield "No wait in collectives was measured, so the loss is not known."
