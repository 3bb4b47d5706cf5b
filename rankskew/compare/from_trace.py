"""One side of a comparison, from recorded steps."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median

from rank_probe.judge.windows import LEAST_STEPS
from rank_probe.wire.stages import STAGES
from rankskew.accounting.step import Step, account, kinds
from rankskew.compare.comparison import (
    RARE_STAGES,
    LateRankCost,
    Side,
    StepBlock,
    in_blocks,
    pause_seconds,
)
from rankskew.replay.replay import Replay, replay
from rankskew.replay.traces import Run, instance, timeline


def trace_side(run: Run, what: str, numbers: Collection[int]) -> Side:
    """Return the side that consists of the steps *numbers* of *run*; *what* begins sentences."""
    part = _only(run, numbers)
    if not part.steps:
        return Side(what, run.job_id, 0.0, 0.0, 0, [], trouble=f"{what} has no step.")
    one = replay(part)
    ranks = sorted(part.times)
    side = Side(what, run.job_id, one.begin_s, one.begin_s + one.seconds, len(ranks), [])
    if [list(stretch.ranks) for stretch in one.parts] != [ranks]:
        come_and_go = f"{what} has ranks that come and go; compare a period in which all are there."
        return replace(side, trouble=come_and_go)
    if standstill := _stands_still(what, part, one.parts[0].steps):
        return replace(side, trouble=standstill)
    steps = [part.steps[number] for number in one.parts[0].steps]
    return replace(
        side,
        blocks=[_block(those, one) for those in in_blocks(steps)],
        late=list(_late(one)) if one.is_judged else None,
        slowdown=one.slowdown,
    )


def _only(run: Run, numbers: Collection[int]) -> Run:
    steps = {number: run.steps[number] for number in sorted(numbers)}
    part = Run(run.job_id, run.attempt, steps, peer_groups=run.peer_groups, nodes=run.nodes)
    for rank, times in run.times.items():
        if mine := {number: times[number] for number in steps if number in times}:
            part.times[rank] = mine
    return part


def _block(steps: Sequence[Step], one: Replay) -> StepBlock:
    paid = account(steps, one.run.peer_groups)
    split = kinds(paid, one.named)
    return StepBlock(
        steps=len(steps),
        seconds=paid.seconds,
        stages={
            stage: median(sum(step[rank].get(stage, 0.0) for step in steps) for rank in steps[0])
            for stage in STAGES
        },
        lost=split.lost if one.synced else None,
        kinds=asdict(split) if one.synced else {},
    )


def _late(one: Replay) -> Iterator[LateRankCost]:
    """Yield each rank that the judge names, with its cost as a mean over the whole side."""
    for finding in one.findings:
        for rank in finding.ranks:
            caused = one.found.caused.items()
            seconds = sum(seconds for (who, _), seconds in caused if who == rank)
            yield LateRankCost(
                rank=rank,
                peer_group=one.run.peer_groups[rank],
                instance=instance(one.run.nodes[rank]),
                stage=finding.stage or "",
                kind=finding.kind,
                gpus_lost=seconds / one.found.seconds if one.synced else None,
            )


def _stands_still(what: str, run: Run, numbers: Sequence[int]) -> str | None:
    """Say where the job stood still, or where steps are missing."""
    steps = [run.steps[number].values() for number in numbers]
    lengths = [max(map(_without_rare, ranks)) for ranks in steps]
    if not lengths:
        return f"{what} has no step that all ranks recorded."
    longest, number = max(zip(lengths, numbers, strict=True))
    pause = pause_seconds(median(lengths))
    if longest > pause:
        return (
            f"{what} has a step of {longest:.0f} s (step {number}): the job stood still; compare "
            "a period without it."
        )
    apart = [after - before for before, after in pairwise(numbers)]
    if apart and max(apart) > LEAST_STEPS * median(apart):
        at = apart.index(max(apart))
        return (
            f"{what} lacks the steps from {numbers[at] + 1} to {numbers[at + 1] - 1}; compare a "
            "period without that gap."
        )
    if max(apart, default=1) > 1:  # Sampled steps are apart.
        return None
    by_rank = timeline(run, 1.0).ends.values()
    ends = [max(of_rank[number] for of_rank in by_rank) for number in numbers]
    for number, ranks, (before, after) in zip(numbers[1:], steps[1:], pairwise(ends), strict=True):
        alone = after - before - max(sum(stages.values()) for stages in ranks)
        if alone > pause:
            return (
                f"{what} has a gap of {alone:.0f} s before step {number}: the job stood still or "
                "was restarted; compare a period without it."
            )
    return None


def _without_rare(stages: Mapping[str, float]) -> float:
    return sum(seconds for stage, seconds in stages.items() if stage not in RARE_STAGES)
