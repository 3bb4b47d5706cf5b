"""`rankskew replay`: judge recorded traces, and report which ranks were slow and the cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from exporter.vocabulary.thresholds import Thresholds
from rank_probe.wire.document import as_document
from rankskew.accounting.run import Account, Kinds, account, kinds, slowdown
from rankskew.replay.findings import NAMING, TraceFinding, findings, not_judgeable
from rankskew.replay.judge import Progress, judge
from rankskew.replay.short import confidence
from rankskew.replay.timeline import TraceStretch, has_sync, left_out, stretches, timeline
from rankskew.replay.traces import Run, instance

# The rules' reason for ranks that share too few steps.
NO_WHOLE_STEPS: Final = "join_incomplete"


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of one run: which ranks were slow, and the cost of waiting.

    *seconds*, its duration, and the times of *findings* and *stretches* are *scale* times the
    recorded ones; *begin_s* is the time_s at which it begins, unscaled. *found* and *kinds* are
    unscaled and cover the *whole_steps*, which all ranks present at the time have; None if there
    are none. *slowdown* is None if no rank could be judged. *confidence* says in words that there
    were few steps, else it is None.
    """

    run: Run
    stretches: Sequence[TraceStretch]
    left_out: Sequence[int]
    whole_steps: int
    scale: float
    begin_s: float
    seconds: float
    synced: bool
    is_judged: bool
    not_judgeable: Sequence[str]
    findings: Sequence[TraceFinding]
    named: frozenset[int]
    found: Account | None
    kinds: Kinds | None
    slowdown: float | None
    confidence: str | None


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
    paid = account(whole, run.peer_groups) if whole else None
    is_judged = any(verdict.reason is None for one in judged for _, verdict in one.verdicts)
    return Replay(
        run=run,
        stretches=parts,
        left_out=left_out(run, parts),
        whole_steps=len(whole),
        scale=scale,
        begin_s=line.origin_seconds,
        seconds=line.seconds,
        synced=has_sync(run),
        is_judged=is_judged,
        not_judgeable=not_judgeable(judged) if whole else [NO_WHOLE_STEPS],
        findings=[_with_group(one, paid, run.peer_groups) for one in found],
        named=named,
        found=paid,
        kinds=None if paid is None else kinds(paid, named),
        slowdown=slowdown(whole, run.peer_groups, named) if is_judged else None,
        confidence=confidence(max((len(part.steps) for part in parts), default=0)),
    )


def as_json(replays: Sequence[Replay]) -> str:
    """Return *replays* for scripts; docs/replay.md describes the fields."""
    return as_document("replay", {"jobs": [job(one) for one in replays]})


def gpus_lost(one: Replay) -> float | None:
    """Return the GPUs that only waited: as measured, or else as computed.

    None if no step has all ranks, or none took any time.
    """
    if one.found is None or one.kinds is None or not one.found.seconds:
        return None
    lost = one.kinds.lost if one.synced else sum(one.found.waited.values())
    return lost / one.found.seconds


def job(one: Replay) -> dict[str, object]:
    """Return one entry of the JSON."""
    seconds = one.found.seconds if one.found else 0.0
    return {
        "job_id": one.run.job_id,
        "attempt": one.run.attempt,
        "ranks": len(one.run.times),
        "steps": len(one.run.steps),
        "whole_steps": one.whole_steps,
        "left_out": list(one.left_out),
        "stretches": [
            {
                "begin_s": round(part.begin, 3),
                "end_s": round(part.end, 3),
                "ranks": len(part.ranks),
                "whole_steps": len(part.steps),
            }
            for part in one.stretches
        ],
        "begin_s": round(one.begin_s, 3),
        "seconds": round(one.seconds, 3),
        "gpus_lost": gpus_lost(one),
        "gpus_lost_by_kind": {kind: lost / seconds for kind, lost in asdict(one.kinds).items()}
        if one.kinds and one.synced and seconds
        else None,
        "slowdown": one.slowdown,
        "source": "judge" if one.is_judged else "none",
        "not_judgeable": list(one.not_judgeable),
        "confidence": one.confidence,
        "findings": [_rounded(asdict(finding)) for finding in one.findings],
    }


def _rounded(finding: dict[str, object]) -> dict[str, object]:
    """Return it with times rounded to milliseconds, the precision of a trace."""
    return {
        name: round(value, 3) if isinstance(value, float) and name.endswith("_s") else value
        for name, value in finding.items()
    }


def _with_group(
    finding: TraceFinding, paid: Account | None, peer_groups: dict[int, str]
) -> TraceFinding:
    """Return a *finding* of unequal groups with the heaviest one, which waits least for others."""
    if finding.kind != "group" or paid is None:
        return finding
    waits = {name: 0.0 for name in sorted(set(peer_groups.values()))}
    for rank, seconds in paid.unequal.items():
        waits[peer_groups[rank]] = max(waits[peer_groups[rank]], seconds)
    return replace(finding, peer_group=min(waits, key=lambda name: waits[name]))
