"""Matches what the ranks recorded: the first collective in which they do not agree, per group."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rankskew.flight_recorder.dumps import Dump, RecordedOperation
from rankskew.flight_recorder.finding import (
    MISMATCH,
    MISSING,
    STUCK,
    CollectiveFinding,
    at_line,
    described,
    finding,
    where,
)
from rankskew.flight_recorder.groups import Group, groups_of
from rankskew.flight_recorder.transfers import unmatched

# No rank can finish these before all have begun. Of the others, a rank may be done with its part.
NEED_ALL: Final = ("all_reduce", "allreduce", "all_gather", "reduce_scatter", "barrier")
# Each rank may have its own sizes.
ANY_SIZE: Final = (
    "all_to_all",
    "alltoall",
    "all_gather_v",
    "reduce_scatter_v",
    "scatter",
    "gather",
    "coalesced",
)


def findings(dumps: Sequence[Dump], world: frozenset[int]) -> list[CollectiveFinding]:
    """Return what is wrong in each group, the likely root first; *world* are the job's ranks.

    A rank that is missing in one group because it waits in another is a victim there.
    """
    found = [
        wrong
        for group in groups_of(dumps, world)
        if (wrong := _mismatch(group) or _missing(group, dumps) or _stuck(group)) is not None
    ]
    found += unmatched(dumps)
    waiting = {rank for each in found for rank in each.begun}
    return sorted(found, key=lambda each: _place(each, waiting))


def _place(found: CollectiveFinding, waiting: set[int]) -> tuple[int, int]:
    """Return the place of what was *found*: what explains others comes first."""
    if found.kind == MISMATCH:
        return 0, found.number
    if found.kind == MISSING:
        suspects = set(found.ranks) | set(found.without_dump)
        victims = suspects & waiting
        return (1 if not victims else 2 if suspects - victims else 3), found.number
    return 4, found.number


def _begun_by_all(group: Group) -> int:
    """Return the number of the last collective that every member with entries has begun."""
    return min(max(entries) for entries in group.entries.values())


def _mismatch(group: Group) -> CollectiveFinding | None:
    upto = _begun_by_all(group)
    since = max(min(entries) for entries in group.entries.values())
    for number in range(since, upto + 1):
        at = {rank: e[number] for rank, e in group.entries.items() if number in e}
        shapes = {rank: _shape(entry) for rank, entry in at.items()}
        counted = Counter(shapes.values()).most_common()
        if len(counted) > 1:
            usual = counted[0][0]
            others = tuple(sorted(rank for rank, shape in shapes.items() if shape != usual))
            first = next(at[rank] for rank in sorted(at) if shapes[rank] == usual)
            return finding(
                MISMATCH,
                group,
                first,
                begun=sorted(set(at) - set(others)),
                ranks=others,
                differences=tuple(
                    f"rank {rank}: {described(at[rank])}{at_line(at[rank])}" for rank in others
                ),
            )
    return None


def _missing(group: Group, dumps: Sequence[Dump]) -> CollectiveFinding | None:
    have = {dump.rank for dump in dumps}
    dumped = group.members & have
    # A member without entries here has begun nothing; or its buffer was too small for them.
    silent = {rank for rank in dumped if rank not in group.entries}
    if all(entry.finished for each in group.entries.values() for entry in each.values()):
        dumped, silent = dumped - silent, set()
    last = 0 if silent else _begun_by_all(group)
    ahead = {
        rank: entries[number]
        for rank, entries in group.entries.items()
        if (number := next((n for n in sorted(entries) if n > last), None)) is not None
    }
    lost = tuple(sorted(group.members - have))
    if not ahead:
        at = {rank: entries[last] for rank, entries in group.entries.items() if last in entries}
        waiting = {rank: entry for rank, entry in at.items() if not entry.finished}
        if not lost or not waiting:
            return None
        first = waiting[min(waiting)]
        return finding(MISSING, group, first, sorted(waiting), (), without_dump=lost)
    behind = tuple(sorted(dumped - set(ahead)))
    first = ahead[min(ahead)]
    needs_all = first.operation.lower().lstrip("_").startswith(NEED_ALL)
    if not needs_all and all(entry.finished for entry in ahead.values()):
        return None
    return finding(
        MISSING,
        group,
        first,
        begun=sorted(ahead),
        ranks=behind,
        without_dump=lost,
        last=tuple(where(dump) for dump in dumps if dump.rank in behind and dump.entries),
    )


def _stuck(group: Group) -> CollectiveFinding | None:
    last = _begun_by_all(group)
    at = {rank: entries[last] for rank, entries in group.entries.items() if last in entries}
    unfinished = tuple(sorted(rank for rank, entry in at.items() if not entry.finished))
    if not unfinished:
        return None
    first = at[unfinished[0]]
    return finding(STUCK, group, first, begun=sorted(at), ranks=unfinished)


def _shape(entry: RecordedOperation) -> tuple[object, ...]:
    """Return what must be the same on all ranks."""
    name = entry.operation.lower().lstrip("_")
    if name.startswith(ANY_SIZE):
        return (name,)
    return name, entry.input_sizes, entry.output_sizes, entry.types
