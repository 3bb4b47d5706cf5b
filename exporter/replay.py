"""`rankskew replay`: run recorded traces through the rules, and say what would have fired."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from exporter.accounting import Account, Kinds, account, kinds, slowdown
from exporter.findings import EXPRESSION, Finding, findings, not_judgeable, source
from exporter.promtool import evaluate
from exporter.replay_series import (
    has_sync,
    input_series,
    instance,
    scrape_times,
    timeline,
    whole_steps,
)
from exporter.traces import Run

# Findings of these kinds say that a rank, or all ranks of a node, are slower than their peers.
NAMING = ("persistent", "node", "mild")


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of one run: what fired, and what its waiting cost.

    *seconds*, how long it took, and the times of *findings* are *scale* times what they were;
    *begin_s* is the time_s at which it begins, unscaled. *found* and *kinds* are unscaled, of the
    *whole_steps* that every rank has, None without any. *slowdown* is None where nothing could be
    judged, so that nobody could be named.
    """

    run: Run
    whole_steps: int
    scale: float
    begin_s: float
    seconds: float
    synced: bool
    source: str
    not_judgeable: Sequence[str]
    findings: Sequence[Finding]
    named: frozenset[int]
    found: Account | None
    kinds: Kinds | None
    slowdown: float | None


def replay(
    run: Run, rules: Sequence[Path], scale: float = 1.0, interval_seconds: float = 15.0
) -> Replay:
    """Replay *run*, *scale* times slower than it was; raises UsageError."""
    line = timeline(run, scale)
    scrapes = scrape_times(line, interval_seconds)
    evaluations = evaluate(
        rules, input_series(run, line, scrapes), EXPRESSION, scrapes, interval_seconds
    )
    fired = findings(evaluations)
    spoke = source(evaluations)
    named = _named(run, fired)
    whole = [run.steps[step] for step in whole_steps(run)]
    found = account(whole, run.peer_groups) if whole else None
    return Replay(
        run=run,
        whole_steps=len(whole),
        scale=scale,
        begin_s=line.origin_seconds,
        seconds=line.seconds,
        synced=has_sync(run),
        source=spoke,
        not_judgeable=not_judgeable(evaluations),
        findings=fired,
        named=named,
        found=found,
        kinds=None if found is None else kinds(found, named),
        slowdown=slowdown(whole, run.peer_groups, named) if whole and spoke != "none" else None,
    )


def as_json(replays: Sequence[Replay]) -> str:
    """Return *replays* for scripts; docs/replay.md describes the fields."""
    return json.dumps({"jobs": [_job(one) for one in replays]}, indent=2, allow_nan=False)


def gpus_lost(one: Replay) -> float | None:
    """Return the GPUs that did nothing but wait: as measured, or else as computed.

    None where no step has all ranks, or none took any time.
    """
    if one.found is None or one.kinds is None or not one.found.seconds:
        return None
    lost = one.kinds.lost if one.synced else sum(one.found.waited.values())
    return lost / one.found.seconds


def _job(one: Replay) -> dict[str, object]:
    seconds = one.found.seconds if one.found else 0.0
    return {
        "job_id": one.run.job_id,
        "attempt": one.run.attempt,
        "ranks": len(one.run.times),
        "steps": len(one.run.steps),
        "whole_steps": one.whole_steps,
        "begin_s": round(one.begin_s, 3),
        "seconds": round(one.seconds, 3),
        "gpus_lost": gpus_lost(one),
        "gpus_lost_by_kind": {kind: lost / seconds for kind, lost in asdict(one.kinds).items()}
        if one.kinds and one.synced and seconds
        else None,
        "slowdown": one.slowdown,
        "source": one.source,
        "not_judgeable": list(one.not_judgeable),
        "findings": [asdict(finding) for finding in one.findings],
    }


def _named(run: Run, fired: Sequence[Finding]) -> frozenset[int]:
    found = [finding for finding in fired if finding.kind in NAMING]
    nodes = {finding.instance for finding in found if finding.rank is None}
    return frozenset(
        {finding.rank for finding in found if finding.rank is not None}
        | {rank for rank, node in run.nodes.items() if instance(node) in nodes}
    )
