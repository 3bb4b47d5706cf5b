"""The store that the join communicates through, and how it shares the store with training."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from rank_probe.guest.yielding import give_way

# Keys per call to the store, and the pause between calls: rank 0's other threads wait for the
# interpreter during a call, and must not make any single step late.
BATCH: Final = 256
PAUSE_SECONDS: Final = 0.002

# Seconds from one round of a rank to the next, by the largest world size that they apply to.
PERIODS: tuple[tuple[int, float], ...] = (
    (256, 1.0),
    (1_024, 2.0),
    (4_096, 5.0),
    (2**31, 10.0),
)

LIFE_KEY: Final = "life"
VERDICT_KEY: Final = "verdict"
# By rank: the steps that it has posted, rank 0's result for it, its own figures, and what it knows
# of itself.
steps_key: Final = "steps/{}".format
result_key: Final = "result/{}".format
figures_key: Final = "figures/{}".format
facts_key: Final = "facts/{}".format
# By the digest of a peer group: its name, and the figures of its ranks.
group_key: Final = "group/{:x}".format
peers_key: Final = "peers/{:x}".format


@dataclass(frozen=True, slots=True)
class PlaceInJob:
    """A rank among those of its process group, and the length of a round."""

    rank: int
    world_size: int

    @property
    def period_seconds(self) -> float:
        """Return the length of a round: a store serves that many ranks in a fraction of it."""
        return next(seconds for ranks, seconds in PERIODS if self.world_size <= ranks)


class Store(Protocol):
    """What the join needs of a torch.distributed store; every failure is a RuntimeError."""

    def set(self, key: str, value: bytes) -> None:
        """Write *key*."""

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all *keys* are there."""

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Read *keys*, which must be there."""

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Write *keys*."""

    def delete_key(self, key: str) -> bool:
        """Delete *key* if it is there."""


class Life(NamedTuple):
    """One life of a process group, of so many *ranks*, and the one before it on the same store."""

    name: str
    ranks: int
    before: str = ""
    ranks_before: int = 0


class KeysOfLife:
    """The keys of one life in a *store*; a Store."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def set(self, key: str, value: bytes) -> None:
        """See Store."""
        self._store.set(f"{self._name}/{key}", value)

    def check(self, keys: Sequence[str]) -> bool:
        """See Store."""
        return self._store.check(self._own(keys))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """See Store."""
        return self._store.multi_get(self._own(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """See Store."""
        self._store.multi_set(self._own(keys), values)

    def delete_key(self, key: str) -> bool:
        """See Store."""
        return self._store.delete_key(f"{self._name}/{key}")

    def _own(self, keys: Sequence[str]) -> list[str]:
        return [f"{self._name}/{key}" for key in keys]


class Lives:
    """The lives of a process group on *store*, each with keys of its own; for one thread.

    A group may be formed anew while the store still has keys of ranks that were killed, or that
    have not noticed yet. Rank 0 begins a life and publishes its name in one key, which always names
    the life begun last.
    """

    def __init__(self, store: Store, rank: int, ranks: int, stop: threading.Event) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._stop = stop
        self.life: Life | None = None
        self.keys: Store = store

    def enter(self) -> bool:
        """Enter the life begun last, which rank 0 begins; return whether the life has changed."""
        if self._rank == 0 and self.life is not None:
            return False
        told = self._told()
        if self._rank == 0:
            before = ("", 0) if told is None else (told.name, told.ranks)
            told = Life(os.urandom(8).hex(), self._ranks, *before)
            self._store.set(LIFE_KEY, " ".join(map(str, told)).encode())
        if told is None or told == self.life:
            return False
        self.life, self.keys = told, KeysOfLife(self._store, told.name)
        # Keys left by a rank of this number: in the life before, or in this one if it is over.
        self._forget(self.keys, [self._rank])
        if told.before:
            ranks = [self._rank]
            if self._rank == 0:
                ranks += range(self._ranks, told.ranks_before)
            self._forget(KeysOfLife(self._store, told.before), ranks)
        return True

    def take_back(self) -> None:
        """Delete this rank's keys; rank 0 also that of its life, unless another has begun."""
        if self.life is None:
            return
        self._forget(self.keys, [self._rank])
        if self._rank == 0 and self._told() == self.life:
            self._store.delete_key(LIFE_KEY)

    def _told(self) -> Life | None:
        if not self._store.check([LIFE_KEY]):
            return None
        said = self._store.multi_get([LIFE_KEY])[0].decode(errors="replace").split(" ")
        if len(said) != len(Life._fields) or not (said[1].isdecimal() and said[3].isdecimal()):
            return None
        return Life(said[0], int(said[1]), said[2], int(said[3]))

    def _forget(self, keys: Store, ranks: Sequence[int]) -> None:
        for some in batches(ranks):
            for rank in some:
                for key in (steps_key, result_key, figures_key, facts_key):
                    keys.delete_key(key(rank))
            if len(ranks) > BATCH and self._stop.wait(PAUSE_SECONDS):
                return


def batches(ranks: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield *ranks* in batches."""
    for first in range(0, len(ranks), BATCH):
        yield ranks[first : first + BATCH]


def present(store: Store, key: Callable[[int], str], ranks: Sequence[int]) -> Sequence[int]:
    """Return those of *ranks* that have written their *key*, with few calls if nearly all have."""
    has_all = store.check([key(rank) for rank in ranks])
    give_way()
    if has_all:
        return ranks
    if len(ranks) == 1:
        return []
    middle = len(ranks) // 2
    return [*present(store, key, ranks[:middle]), *present(store, key, ranks[middle:])]


@contextmanager
def own_arithmetic() -> Iterator[None]:
    """Raise ArithmeticError for torch's RuntimeErrors, which elsewhere mean a failed store."""
    try:
        yield
    except RuntimeError as error:
        raise ArithmeticError(f"the join cannot add up its steps: {error}") from error
