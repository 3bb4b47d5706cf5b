"""A world of ranks in one thread, which join over a store in memory."""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rank_probe.join.ring import digest
from rank_probe.join.rounds import Rounds
from rank_probe.join.store import LIFE_KEY, PlaceInJob
from rank_probe.measure.steps import StepVector, Vectors
from rank_probe.process.identity import Identity
from rank_probe.wire.stages import STAGES, SYNC

MS = 1_000_000
LIFE = "f00d"
GROUP = f"group/{digest('all'):x}"


class MemoryStore:
    """A store in a dictionary; every call raises *error* if there is one.

    *calls* counts the calls that read; *read* and *written* are the keys. With *deleted_meanwhile*
    each value is empty, as in a TCPStore that loses a key after check() has found it.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.deleted_meanwhile = False
        self.calls = 0
        self.read: list[str] = []
        self.written: list[str] = []

    def of_life(self) -> dict[str, bytes]:
        """Return what is kept of the life begun last, by its own keys."""
        prefix = self.values.get(LIFE_KEY, b"").decode().partition(" ")[0] + "/"
        return {
            key.removeprefix(prefix): value
            for key, value in list(self.values.items())
            if key.startswith(prefix)
        }

    def _live(self) -> dict[str, bytes]:
        if self.error is not None:
            raise self.error
        return self.values

    def set(self, key: str, value: bytes) -> None:
        self.written.append(key)
        self._live()[key] = value

    def check(self, keys: Sequence[str]) -> bool:
        self.calls += 1
        return self._live().keys() >= set(keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.calls += 1
        self.read += keys
        values = [self._live()[key] for key in keys]
        return [b""] * len(keys) if self.deleted_meanwhile else values

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        self._live().update(zip(keys, values, strict=True))

    def delete_key(self, key: str) -> bool:
        return self._live().pop(key, None) is not None


def living() -> MemoryStore:
    """Return a store on which rank 0 of two has begun the life LIFE."""
    store = MemoryStore()
    store.values[LIFE_KEY] = f"{LIFE} 2  0".encode()
    return store


def identity(rank: int, group: str = "all") -> Identity:
    return Identity("llama", group, rank, 4, str(rank), "0", attempt=0)


def vector(sync: int = 0, **milliseconds: int) -> StepVector:
    """Return a step without its number."""
    spent = [MS * milliseconds.get(stage, 0) for stage in STAGES]
    spent[SYNC] = MS * sync
    return StepVector(0, 0, tuple(spent))


HEALTHY, LATE = vector(sync=41, data=5, backward=10), vector(sync=1, data=45, backward=10)


class World:
    """Ranks that take their rounds in turn, in one thread; each rank may have its own vector.

    *steps_before* is how many steps each had counted when the group formed, by default none.
    *facts* are what each knows of itself.
    """

    def __init__(
        self,
        groups: Sequence[str],
        store: MemoryStore | None = None,
        steps_before: Sequence[int] = (),
        facts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.store = store or MemoryStore()
        self._steps_before = steps_before or [0] * len(groups)
        self.kept = [Vectors(lambda: None) for _ in groups]
        self.rounds = [
            Rounds(
                self.store,
                PlaceInJob(rank, len(groups)),
                self.kept[rank],
                lambda rank=rank, group=group: identity(rank, group),  # type: ignore[misc]
                threading.Event(),
                self._steps_before[rank],
                facts=lambda rank=rank: facts[rank] if facts else {},  # type: ignore[misc]
            )
            for rank, group in enumerate(groups)
        ]
        self.now = 100.0

    def step(self, number: int, late: Collection[int] = ()) -> None:
        """Do step *number* of the group, in which these ranks are *late*."""
        for rank, kept in enumerate(self.kept):
            counted = self._steps_before[rank] + number
            kept.waiting.append((LATE if rank in late else HEALTHY)._replace(step=counted))

    def round(self, absent: Collection[int] = ()) -> None:
        """Let all ranks but these take their rounds."""
        self.now += PlaceInJob(0, len(self.rounds)).period_seconds
        for rank, each in enumerate(self.rounds):
            if rank not in absent:
                each.run(self.now)

    def verdict(self, rank: int = 0) -> dict[str, Any]:
        """Return what *rank* reads: there must be a verdict."""
        verdict = self.rounds[rank].verdict
        assert verdict is not None
        return verdict

    def train(
        self, steps: Iterable[int], late: Collection[int] = (), absent: Collection[int] = ()
    ) -> None:
        """Take a round after each of *steps*."""
        for number in steps:
            self.step(number, late)
            self.round(absent)
