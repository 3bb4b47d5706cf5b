"""The launch that is audited: the facts of its ranks, and what the user says of it."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rank_probe.audit.checks.findings import count
from rank_probe.audit.readings.facts import Facts

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Launch:
    """The facts of at least one rank, ascending by rank.

    *missing* ranks posted nothing that could be read. *cannot_compare* says why no ranks could be
    compared, and is empty if they could. If this process is no rank, it is *alone*, and stands for
    *ranks_here* ranks of its node. Each rank has *workers* loader workers.
    """

    facts: Sequence[Facts]
    world_size: int = 1
    missing: tuple[int, ...] = ()
    cannot_compare: str = ""
    alone: bool = False
    ranks_here: int = 1
    workers: int = 0
    pin_memory: bool = False

    def machines(self) -> list[list[Facts]]:
        """Return the ranks of each machine, in the order of their first ranks."""
        return list(grouped(self.facts, lambda facts: facts.machine).values())

    def containers(self) -> list[list[Facts]]:
        """Return the ranks that share one control group, for each."""
        by_container = grouped(self.facts, lambda facts: (facts.machine, facts.container))
        return list(by_container.values())

    def count(self, together: Sequence[Facts]) -> int:
        """Return how many ranks *together* stand for."""
        return self.ranks_here if self.alone else len(together)

    def told(self, together: Sequence[Facts]) -> str:
        """Return such as '8 ranks with 4 loader workers each'."""
        ranks = count(self.count(together), "rank")
        return (
            f"{ranks} with {count(self.workers, 'loader worker')} each" if self.workers else ranks
        )


def grouped(facts: Sequence[Facts], key: Callable[[Facts], Key]) -> dict[Key, list[Facts]]:
    """Return *facts* by *key*, in the order of the first of each."""
    groups: dict[Key, list[Facts]] = {}
    for one in facts:
        groups.setdefault(key(one), []).append(one)
    return groups


def majority(values: Mapping[int, Key]) -> Key | None:
    """Return the value that more than half of the ranks have; None if there is none."""
    value, count = Counter(values.values()).most_common(1)[0]
    return value if 2 * count > len(values) else None
