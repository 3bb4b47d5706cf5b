"""Replays as text: which ranks were slow and when, one line each, and the cost of waiting."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from exporter.live.sentences import is_slower, pausing
from exporter.vocabulary.words import slow_at
from rank_probe.judge.verdict import MOST_LATE
from rankskew.accounting.run import Account, Kinds
from rankskew.replay.findings import TraceFinding
from rankskew.replay.replay import Replay
from rankskew.wording import clock, counted, named_ranks

# Below this share of the whole loss, the loss that a rank causes in a stage is noise.
SMALLEST_PART: Final = 0.01
# How many of the ranks that are late in turn get a line each.
MOST_IN_TURN: Final = 5
MOST_STRETCHES: Final = 8


def report(replays: Sequence[Replay]) -> str:
    """Return *replays* as text for a person."""
    return "\n\n".join("\n".join(_report(one)) for one in replays)


def _report(one: Replay) -> Iterator[str]:
    steps, ranks = counted(one.whole_steps, "step"), counted(len(one.run.times), "rank")
    yield (
        f"job {one.run.job_id}, attempt {one.run.attempt}: {steps} of {ranks} in "
        f"{clock(one.seconds)}{_stretched(one.scale)}"
        f"{_left_out(len(one.run.steps) - one.whole_steps)}"
    )
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
    if one.found is None or one.kinds is None:
        yield "  no step has all ranks, so the loss is not known"
        return
    yield from _lost(one, one.found, one.kinds)
    yield from _groups(one.found, one.run.peer_groups)


# ---- What was found ----------------------------------------------------------------------------


def _stretches(one: Replay) -> Iterator[str]:
    if one.left_out:
        yield f"  {named_ranks(one.left_out)} left out: too few rows to judge"
    if len(one.stretches) > 1:
        yield "  ranks come and go; each period with the same ranks is judged separately:"
        for part in one.stretches[:MOST_STRETCHES]:
            yield (
                f"    {_period(part.begin, part.end)}: {counted(len(part.steps), 'step')} of "
                f"{counted(len(part.ranks), 'rank')}"
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


def _lost(one: Replay, found: Account, split: Kinds) -> Iterator[str]:
    """Yield the loss and its four kinds, which add up to it."""
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


def _stretched(scale: float) -> str:
    return "" if scale == 1 else f", which is {scale:g} times as long as it took"


def _left_out(steps: int) -> str:
    return f" ({steps} more lack a rank and are left out)" if steps else ""
