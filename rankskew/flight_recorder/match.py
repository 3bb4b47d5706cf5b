"""Matches what the ranks recorded: the first collective in which they do not agree, per group.

The dataclasses are what `rankskew flight-recorder --json` prints.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from exporter.live.wording import sentence
from rankskew.flight_recorder.dumps import Dump, RecordedOperation
from rankskew.wording import named_ranks

Kind = Literal["missing", "skipped", "mismatch", "not_started", "stuck"]
MISSING: Final = "missing"
SKIPPED: Final = "skipped"
MISMATCH: Final = "mismatch"
NOT_STARTED: Final = "not_started"
STUCK: Final = "stuck"
# The group of all ranks, as torch describes it.
WORLD: Final = "default_pg"
NO_STARTS: Final = (
    "nothing records whose device has reached it (NCCL before 2.15: TORCH_NCCL_ENABLE_TIMING=1)"
)
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
# torch names transfers by the ranks within the group: "send 1->2", "recv 2<-1".
TRANSFER: Final = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")
# Files whose lines are not the user's.
TORCH: Final = ("-packages/torch/", "/torch/distributed/", "/torch/nn/", "/torch/autograd/", "<")


@dataclass(frozen=True, slots=True)
class CollectiveFinding:
    """What is wrong in one process group, at one of its operations."""

    kind: Kind
    """What ranks have done: not begun it, left out one like it, begun something else, queued it on
    a device that does not reach it, or not finished it."""
    group: str
    """Name that torch gave the process group, such as 0."""
    description: str
    """Description of the process group, such as default_pg; may be empty."""
    number: int
    """Number of the collective in its group, or of the send or receive."""
    operation: str
    """Name of the collective, or send or recv."""
    sizes: str
    """Types and sizes of its tensors, such as of Float [8]; empty if not known."""
    begun: tuple[int, ...]
    """Ranks that have begun it, and whose device has reached it where that is recorded."""
    ranks: tuple[int, ...] = ()
    """Ranks with a dump of which kind says what they did."""
    without_dump: tuple[int, ...] = ()
    """Ranks of the group without a dump, which may be missing from it."""
    line: str | None = None
    """Function, file and line that began it; null if the dump has no stacks."""
    agreed: str | None = None
    """The collective before it, on which ranks agreed, such as barrier 4; null if not known."""
    details: tuple[str, ...] = ()
    """What each of ranks began instead, or where it was last, in words."""
    sentence: str = ""
    """What is wrong, in a sentence."""


@dataclass(frozen=True, slots=True)
class HangReport:
    """What the dumps of a job say."""

    dumps: tuple[int, ...]
    """Ranks whose dump was read."""
    ranks_without_dump: tuple[int, ...]
    """Ranks of the job that left no dump, as far as the dumps name them."""
    unreadable: tuple[str, ...]
    """Which files are cut off, refused or no dumps, each in a sentence."""
    findings: tuple[CollectiveFinding, ...]
    """What is wrong in each process group, the likely root first."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group with its ranks' collectives; *members*, if unknown, are the ranks with entries."""

    name: str
    description: str
    members: frozenset[int]
    # By rank and number.
    entries: Mapping[int, Mapping[int, RecordedOperation]]

    def at(self, number: int) -> dict[int, RecordedOperation]:
        """Return what each rank that recorded it has begun as *number*."""
        return {rank: each[number] for rank, each in self.entries.items() if number in each}

    def finding(
        self, kind: Kind, entry: RecordedOperation, begun: Sequence[int], **more: Any
    ) -> CollectiveFinding:
        """Return what is wrong at *entry*, with *more* of it."""
        before = list(self.at(entry.number - 1).values())
        agreed = f"{before[0].operation} {before[0].number}" if before else None
        return _finding(kind, entry, begun, agreed=agreed, **more)


def _finding(
    kind: Kind, entry: RecordedOperation, begun: Sequence[int], **more: Any
) -> CollectiveFinding:
    found = CollectiveFinding(
        kind=kind,
        group=entry.group,
        description=entry.description,
        number=entry.number,
        operation=entry.operation.partition(" ")[0],  # torch adds the ranks of a transfer.
        sizes="" if entry.is_p2p else _sizes(entry),
        begun=tuple(begun),
        line=line_of(entry),
        **more,
    )
    return replace(found, sentence=_sentence(found))


def compare_dumps(dumps: Sequence[Dump], unreadable: Mapping[int, str]) -> HangReport:
    """Return what is wrong in each group, the likely root first; some dumps were *unreadable*.

    A rank that is missing in one group because it waits in another is a victim there.
    """
    # The ranks of the job, as far as its dumps name them.
    named = {rank for dump in dumps for ranks in dump.members.values() for rank in ranks}
    world = frozenset(range(max(named.union((dump.rank for dump in dumps), unreadable)) + 1))
    found = [wrong for group in _groups(dumps, world) if (wrong := _first_wrong(group, dumps))]
    found += _unmatched_transfers(dumps)
    waiting = {rank for each in found for rank in each.begun}
    found.sort(key=lambda each: _place(each, waiting))
    return HangReport(
        dumps=tuple(dump.rank for dump in dumps),
        ranks_without_dump=tuple(sorted(world - {dump.rank for dump in dumps})),
        unreadable=tuple(unreadable.values()),
        findings=tuple(found),
    )


def _place(found: CollectiveFinding, waiting: set[int]) -> tuple[int, int]:
    """Return the sort key of *found*: a finding that explains others comes first."""
    if found.kind in (MISMATCH, SKIPPED):
        return 0, found.number
    if found.kind in (MISSING, NOT_STARTED):
        suspects = set(found.ranks) | set(found.without_dump)
        victims = suspects & waiting
        return (1 if not victims else 2 if suspects - victims else 4), found.number
    return 3, found.number


def _sizes(entry: RecordedOperation) -> str:
    sizes = ", ".join(str(list(size)) for size in entry.input_sizes)
    return f"of {'/'.join(dict.fromkeys(entry.types))} {sizes}" if sizes else ""


def line_of(entry: RecordedOperation) -> str | None:
    """Return the innermost line outside torch; None if the dump has no stacks."""
    for name, file, line in entry.frames:
        if not any(part in file for part in TORCH):
            return f"{name} ({file}:{line})"
    return None


def _last(dump: Dump) -> str:
    entry = dump.entries[-1]
    group = entry.description or entry.group
    state = {True: "finished", False: "not finished", None: "end not recorded"}[entry.finished]
    line = line_of(entry)
    where = f", begun at {line}" if line else ""
    what = f"{entry.operation} {entry.number} of {group}"
    return f"rank {dump.rank} was last in {what}, {state}{where}"


# ---- Collectives -------------------------------------------------------------------------------


def _groups(dumps: Sequence[Dump], world: frozenset[int]) -> list[Group]:
    """Return the groups in which any rank has begun a collective; *world* are all ranks."""
    by_group: dict[tuple[str, str, frozenset[int]], dict[int, dict[int, RecordedOperation]]] = {}
    for dump in dumps:
        # A hook and its backend may record the same: prefer the record that knows the end.
        for entry in sorted(dump.entries, key=lambda each: each.finished is None):
            if entry.is_p2p:
                continue
            # A split may give groups of other ranks the same name.
            members = dump.members.get(entry.group, frozenset())
            if not members and entry.description == WORLD:
                members = world
            key = (entry.group, entry.description, members)
            # Operations that are coalesced share a number: the first stands for all.
            by_group.setdefault(key, {}).setdefault(dump.rank, {}).setdefault(entry.number, entry)
    return [
        Group(name, description, members or frozenset(entries), entries)
        for (name, description, members), entries in sorted(
            by_group.items(), key=lambda item: (item[0][0], item[0][1], sorted(item[0][2]))
        )
    ]


def _first_wrong(group: Group, dumps: Sequence[Dump]) -> CollectiveFinding | None:
    """Return what is wrong at the first collective that not all members are done with.

    Later ones only queue behind it, more of them on some ranks than on others.
    """
    by_rank = {dump.rank: dump for dump in dumps}
    lost = tuple(sorted(group.members - by_rank.keys()))
    # They have begun nothing here; or their buffer was too small for it.
    silent = (group.members & by_rank.keys()) - group.entries.keys()
    last = {rank: max(entries) for rank, entries in group.entries.items()}
    since = max(min(entries) for entries in group.entries.values())
    for number in sorted({n for each in group.entries.values() for n in each if n >= since}):
        at = group.at(number)
        if (wrong := _mismatch(group, at)) is not None:
            return wrong
        waiting = tuple(sorted(rank for rank, entry in at.items() if entry.finished is False))
        behind = {rank for rank in last if last[rank] < number} | (silent if waiting else set())
        first = at[min(waiting or at)]
        needs_all = first.operation.lower().lstrip("_").startswith(NEED_ALL)
        if behind and (waiting or needs_all):
            ranks = tuple(sorted(behind))
            if any(entry.completed for entry in at.values()) and not waiting:
                fewer = tuple(f"rank {r}: {max(last.values()) - last[r]:,} fewer" for r in ranks)
                return group.finding(SKIPPED, first, sorted(at), ranks=ranks, details=fewer)
            where = tuple(_last(by_rank[rank]) for rank in ranks if by_rank[rank].entries)
            return group.finding(
                MISSING, first, sorted(at), ranks=ranks, without_dump=lost, details=where
            )
        if waiting and lost:
            return group.finding(MISSING, first, waiting, without_dump=lost)
        if waiting:
            reached = sorted(rank for rank in at if at[rank].started)
            queued = tuple(rank for rank in waiting if at[rank].started is False)
            if reached and queued:
                return group.finding(NOT_STARTED, first, reached, ranks=queued)
            untold = () if first.started else (NO_STARTS,)
            return group.finding(STUCK, first, sorted(at), ranks=waiting, details=untold)
    return None


def _mismatch(group: Group, at: Mapping[int, RecordedOperation]) -> CollectiveFinding | None:
    shapes = {rank: _shape(entry) for rank, entry in at.items()}
    (usual, _), *others = Counter(shapes.values()).most_common()
    if not others:
        return None
    odd = tuple(sorted(rank for rank, shape in shapes.items() if shape != usual))
    alike = sorted(at.keys() - set(odd))
    return group.finding(MISMATCH, at[alike[0]], alike, ranks=odd, details=tuple(_begun(at, odd)))


def _begun(at: Mapping[int, RecordedOperation], ranks: Iterable[int]) -> Iterator[str]:
    for rank in ranks:
        line = line_of(at[rank])
        where = "" if line is None else f", at {line}"
        yield f"rank {rank}: {at[rank].operation} {_sizes(at[rank])}".rstrip() + where


def _shape(entry: RecordedOperation) -> tuple[object, ...]:
    """Return what must be the same on all ranks."""
    name = entry.operation.lower().lstrip("_")
    if name.startswith(ANY_SIZE):
        return (name,)
    return name, entry.input_sizes, entry.output_sizes, entry.types


# ---- Sends and receives ------------------------------------------------------------------------

# The group's name, whether it is a send, and the ranks of the sender and the receiver.
Way = tuple[str, bool, int, int]


def _unmatched_transfers(dumps: Sequence[Dump]) -> Iterator[CollectiveFinding]:
    """Yield the transfers that a rank waits for, and whether the other has begun its side."""
    waiting: dict[Way, tuple[int, RecordedOperation]] = {}
    for dump in dumps:
        for way, entry in _unfinished_transfers(dump):
            waiting.setdefault(way, (dump.rank, entry))
    by_rank = {dump.rank: dump for dump in dumps}
    for (group, is_send, *pair), (rank, entry) in sorted(waiting.items(), key=lambda item: item[0]):
        if (group, not is_send, *pair) in waiting:
            if is_send:
                yield _finding(STUCK, entry, sorted(pair), ranks=tuple(sorted(pair)))
            continue
        other = pair[1] if is_send else pair[0]
        peer = by_rank.get(other)
        yield _finding(
            MISSING,
            entry,
            [rank],
            ranks=() if peer is None else (other,),
            without_dump=(other,) if peer is None else (),
            details=() if peer is None or not peer.entries else (_last(peer),),
        )


def _unfinished_transfers(dump: Dump) -> Iterator[tuple[Way, RecordedOperation]]:
    for entry in dump.entries:
        name = TRANSFER.fullmatch(entry.operation)
        if entry.is_p2p and entry.finished is False and name is not None:
            members = sorted(dump.members.get(entry.group) or ())
            mine, other = int(name[2]), int(name[4])
            if members and max(mine, other) < len(members):
                mine, other = members[mine], members[other]
            is_send = name[1] == "send"
            yield (entry.group, is_send, *((mine, other) if is_send else (other, mine))), entry


# ---- Words -------------------------------------------------------------------------------------


def _sentence(found: CollectiveFinding) -> str:
    group = f"{found.group} ({found.description})" if found.description else found.group
    what = f"{found.operation} {found.number} in group {group}"
    if found.kind == MISMATCH:
        return sentence(f"{named_ranks(found.ranks)} began something else than {what}.")
    if found.kind == MISSING:
        wait = "waits" if len(found.begun) == 1 else "wait"
        absent = " and ".join(_absent(found))
        return sentence(f"{named_ranks(found.begun)} {wait} in {what}; {absent}.")
    if found.kind == SKIPPED:
        so = "one is skipped, or the dump is older"
        return sentence(f"{_have_not(found.ranks)} begun {what}, which others have finished: {so}.")
    if found.kind == NOT_STARTED:
        return sentence(
            f"{named_ranks(found.begun)} wait in {what}; the device of {named_ranks(found.ranks)} "
            "has not reached it: look at what it does before."
        )
    if set(found.ranks) == set(found.begun):
        those = named_ranks(found.ranks) if found.operation in ("send", "recv") else "all ranks"
        none = "and none has finished it: look at the network between them"
        return sentence(f"{those} are in {what}, {none}.")
    return f"All ranks have begun {what}, but {_have_not(found.ranks)} finished it."


def _absent(found: CollectiveFinding) -> Iterator[str]:
    if found.ranks:
        yield f"{_have_not(found.ranks)} begun it"
    if found.without_dump:
        yield f"{named_ranks(found.without_dump)} left no dump that can be read: look there first"


def _have_not(ranks: Sequence[int]) -> str:
    return f"{named_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} not"
