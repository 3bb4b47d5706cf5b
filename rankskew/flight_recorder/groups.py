"""The process groups of a job, put together from the dumps of its ranks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankskew.flight_recorder.dumps import Dump, RecordedOperation

# The group of all ranks, as torch describes it.
WORLD: Final = "default_pg"


@dataclass(frozen=True, slots=True)
class Group:
    """A group with the collectives of its ranks; *members* are those with entries if not known."""

    name: str
    description: str
    members: frozenset[int]
    # By rank and number.
    entries: Mapping[int, Mapping[int, RecordedOperation]]


def ranks_of_job(dumps: Sequence[Dump], unreadable: Iterable[int]) -> frozenset[int]:
    """Return the ranks of the job, as far as its dumps name them; some were *unreadable*."""
    named = {rank for dump in dumps for ranks in dump.members.values() for rank in ranks}
    return frozenset(range(max(named.union((dump.rank for dump in dumps), unreadable)) + 1))


def groups_of(dumps: Sequence[Dump], world: frozenset[int]) -> list[Group]:
    """Return the groups in which any rank has begun a collective; *world* are all ranks."""
    by_group: dict[tuple[str, str, frozenset[int]], dict[int, dict[int, RecordedOperation]]] = {}
    for dump in dumps:
        for entry in dump.entries:
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
