"""One side of a comparison, from recorded steps."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from statistics import median

from exporter.accounting.run import Account, Step, account, kinds, slowdown
from exporter.diagnose.compare.side import (
    RARE_STAGES,
    Block,
    LateRank,
    Side,
    in_blocks,
    pause_seconds,
)
from exporter.replay.findings import NAMING, Finding, findings
from exporter.replay.judge import judge
from exporter.replay.series import instance
from exporter.replay.stretches import stretches
from exporter.replay.times import Timeline, has_sync, timeline
from exporter.replay.traces import Run
from exporter.vocabulary.thresholds import Thresholds
from rank_probe.stages import STAGES
from rank_probe.windows import LEAST_STEPS


def trace_side(run: Run, what: str, numbers: Collection[int]) -> Side:
    """Return the side that consists of the steps *numbers* of *run*; *what* begins sentences."""
    part = _only(run, numbers)
    if not part.steps:
        return Side(what, run.job_id, 0.0, 0.0, 0, [], trouble=f"{what} has no step.")
    line = timeline(part, 1.0)
    parts = stretches(part, line)
    begin, end = line.origin_seconds, line.origin_seconds + line.seconds
    ranks = sorted(part.times)
    if len(parts) != 1 or list(parts[0].ranks) != ranks:
        come_and_go = f"{what} has ranks that come and go; compare a period in which all are there."
        return Side(what, run.job_id, begin, end, len(ranks), [], trouble=come_and_go)
    steps = [part.steps[number] for number in parts[0].steps]
    if standstill := _stands_still(what, parts[0].steps, steps, line):
        return Side(what, run.job_id, begin, end, len(ranks), [], trouble=standstill)
    judged = judge(part, line, parts, lambda share: None)
    is_judged = any(verdict.reason is None for one in judged for _, verdict in one.verdicts)
    nodes = {rank: instance(node) for rank, node in part.nodes.items()}
    found = findings(judged, nodes, Thresholds().value)
    named = frozenset(rank for one in found if one.kind in NAMING for rank in one.ranks)
    synced = has_sync(part)
    paid = [account(those, part.peer_groups) for those in in_blocks(steps)]
    return Side(
        what=what,
        job_id=run.job_id,
        begin=begin,
        end=end,
        ranks=len(ranks),
        blocks=[
            _block(those, cost, named, synced)
            for those, cost in zip(in_blocks(steps), paid, strict=True)
        ],
        late=list(_late(found, part, paid, synced)) if is_judged else None,
        slowdown=slowdown(steps, part.peer_groups, named) if is_judged else None,
    )


def _only(run: Run, numbers: Collection[int]) -> Run:
    steps = {number: run.steps[number] for number in sorted(numbers)}
    part = Run(run.job_id, run.attempt, steps, peer_groups=run.peer_groups, nodes=run.nodes)
    for rank, times in run.times.items():
        if mine := {number: times[number] for number in steps if number in times}:
            part.times[rank] = mine
    return part


def _block(steps: Sequence[Step], paid: Account, named: Collection[int], synced: bool) -> Block:
    split = kinds(paid, named)
    return Block(
        steps=len(steps),
        seconds=paid.seconds,
        stages={
            stage: median(sum(step[rank].get(stage, 0.0) for step in steps) for rank in steps[0])
            for stage in STAGES
        },
        lost=split.lost if synced else None,
        kinds=asdict(split) if synced else {},
    )


def _late(
    found: Sequence[Finding], run: Run, paid: Sequence[Account], synced: bool
) -> Iterator[LateRank]:
    """Yield each rank that the judge names, with its cost as a mean over the whole side."""
    seconds = sum(one.seconds for one in paid)
    caused = dict.fromkeys(run.times, 0.0)
    for one in paid:
        for (rank, _), gpu_seconds in one.caused.items():
            caused[rank] += gpu_seconds
    for finding in found:
        if finding.stage is None:
            continue
        for rank in finding.ranks:
            yield LateRank(
                rank=rank,
                peer_group=run.peer_groups[rank],
                instance=instance(run.nodes[rank]),
                stage=finding.stage,
                kind=finding.kind,
                gpus_lost=caused[rank] / seconds if synced else None,
            )


def _stands_still(
    what: str, numbers: Sequence[int], steps: Sequence[Step], line: Timeline
) -> str | None:
    """Say where the job stood still, or where steps are missing."""
    lengths = [max(map(_without_rare, step.values())) for step in steps]
    if not lengths:
        return f"{what} has no step that all ranks recorded."
    longest = max(range(len(steps)), key=lambda at: lengths[at])
    if lengths[longest] > pause_seconds(median(lengths)):
        return (
            f"{what} has a step of {lengths[longest]:.0f} s (step {numbers[longest]}): the job "
            "stood still; compare a period without it."
        )
    apart = [b - a for a, b in pairwise(numbers)]
    if apart and max(apart) > LEAST_STEPS * median(apart):
        at = apart.index(max(apart))
        return (
            f"{what} lacks the steps from {numbers[at] + 1} to {numbers[at + 1] - 1}; compare a "
            "period without that gap."
        )
    ends = [
        max(line.ends[rank][number] for rank in step)
        for number, step in zip(numbers, steps, strict=True)
    ]
    if max(apart, default=1) > 1:  # Sampled steps are apart.
        return None
    for at, (earlier, later) in enumerate(pairwise(ends), 1):
        alone = later - earlier - max(sum(stages.values()) for stages in steps[at].values())
        if alone > pause_seconds(median(lengths)):
            return (
                f"{what} has a gap of {alone:.0f} s before step {numbers[at]}: the job stood "
                "still or was restarted; compare a period without it."
            )
    return None


def _without_rare(stages: Mapping[str, float]) -> float:
    return sum(seconds for stage, seconds in stages.items() if stage not in RARE_STAGES)
