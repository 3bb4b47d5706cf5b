"""Replays as text for people: what fired when, one line each, and what the waiting cost."""

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import Final

from exporter.accounting import Account, Kinds
from exporter.findings import Finding
from exporter.replay import Replay

# What a rank causes in a stage now and then is noise below this part of the whole loss.
SMALLEST_PART: Final = 0.01
# So many of the ranks that take turns are worth a line each.
MOST_IN_TURN: Final = 5
# The rules look at windows of one and of five minutes.
SHORT_SECONDS: Final = 300.0


def report(replays: Sequence[Replay]) -> str:
    """Return *replays* as text for a person."""
    return "\n\n".join("\n".join(_report(one)) for one in replays)


def _report(one: Replay) -> Iterator[str]:
    ranks, left_out = len(one.run.times), len(one.run.steps) - one.whole_steps
    yield (
        f"job {one.run.job_id}, attempt {one.run.attempt}: {one.whole_steps} steps of {ranks} ranks"
        f" in {_clock(one.seconds)}{_stretched(one.scale)}{_left_out(left_out)}"
    )
    for finding in one.findings:
        yield f"  {_finding(finding)}"
    if not one.findings:
        yield "  nothing fired"
    if one.not_judgeable:
        yield f"  not judgeable: {', '.join(one.not_judgeable)}"
        if one.synced and one.seconds < SHORT_SECONDS:
            yield "    the rules look at minutes: stretch a short trace with --time-scale"
    if one.slowdown is not None and one.named:
        yield (
            f"  slowdown: {one.slowdown:.3f} times what it would take with {_ranks(one.named)} "
            f"as fast as {'its' if len(one.named) == 1 else 'their'} peers"
        )
    if one.found is None or one.kinds is None:
        yield "  no step has all ranks, so none can be accounted for"
        return
    yield from _lost(one, one.found, one.kinds)
    yield from _groups(one.found, one.run.peer_groups)


def _finding(finding: Finding) -> str:
    until = "the end" if finding.cleared_s is None else _clock(finding.cleared_s)
    words = [f"{_clock(finding.onset_s)} to {until}: {finding.alert} ({finding.severity})"]
    if finding.rank is not None:
        words.append(f"rank {finding.rank} of peer group {finding.peer_group}")
    if finding.instance is not None:
        words.append(f"on {finding.instance}")
    if finding.stage is not None:
        words.append(f"in {finding.stage}")
    lost = "" if finding.gpus_lost is None else f", {finding.gpus_lost:.2f} GPUs lost"
    return " ".join(words) + lost


def _lost(one: Replay, found: Account, split: Kinds) -> Iterator[str]:
    """Yield what was lost, and where it comes from; the four kinds add up to it."""
    computed = sum(found.waited.values())
    what = "lost to waiting" if one.synced else "if all waited for the slowest, lost"
    total = split.lost if one.synced else computed
    yield f"  {what}: {_cost(total, found)} of {len(found.waited)}"
    yield f"    for ranks that are late (persistent): {_cost(split.persistent, found)}"
    yield from _caused(found, one.named, computed)
    yield f"    for now one rank, now another (rotating): {_cost(split.rotating, found)}"
    others = found.waited.keys() - one.named
    yield from list(_caused(found, others, computed))[:MOST_IN_TURN]
    yield f"    for heavier peer groups (group): {_cost(split.group, found)}"
    if one.synced:
        yield f"    for communication, all ranks alike (common): {_cost(split.common, found)}"


def _caused(found: Account, ranks: Collection[int], lost: float) -> Iterator[str]:
    """Yield what each of *ranks* caused in each stage, the most first."""
    shown = [
        (seconds, rank, stage)
        for (rank, stage), seconds in found.caused.items()
        if rank in ranks and seconds >= SMALLEST_PART * lost
    ]
    for seconds, rank, stage in sorted(shown, key=lambda each: (-each[0], each[1], each[2])):
        yield f"      rank {rank} in {stage}: {_cost(seconds, found)}"


def _groups(found: Account, peer_groups: dict[int, str]) -> Iterator[str]:
    for name in sorted(set(peer_groups.values())):
        ranks = sorted(rank for rank, group in peer_groups.items() if group == name)
        waited = sum(found.waited[rank] for rank in ranks)
        least = min(ranks, key=lambda rank: found.waited[rank])
        yield (
            f"  peer group {name}: {len(ranks)} ranks waited {_cost(waited, found)} for the "
            f"slowest; rank {least} the least, {found.waited[least]:.2f} s"
        )


def _cost(gpu_seconds: float, found: Account) -> str:
    return f"{gpu_seconds:.2f} GPU-seconds, {gpu_seconds / (found.seconds or 1.0):.3f} GPUs"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"


def _stretched(scale: float) -> str:
    return "" if scale == 1 else f", which is {scale:g} times as long as it took"


def _left_out(steps: int) -> str:
    return f" ({steps} more lack a rank and are left out)" if steps else ""
