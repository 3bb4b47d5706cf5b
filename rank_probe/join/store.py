"""The store that the join speaks through, and how it takes turns with training there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

# Keys per call to the store, and the pause between calls: rank 0's other threads wait for the
# interpreter during a call, and must not make any single step late.
BATCH: Final = 256
PAUSE_SECONDS: Final = 0.002


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


def batches(ranks: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield *ranks* in batches."""
    for first in range(0, len(ranks), BATCH):
        yield ranks[first : first + BATCH]


@contextmanager
def own_arithmetic() -> Iterator[None]:
    """Raise ArithmeticError for torch's RuntimeErrors, which elsewhere mean a failed store."""
    try:
        yield
    except RuntimeError as error:
        raise ArithmeticError(f"the join cannot add up its steps: {error}") from error
