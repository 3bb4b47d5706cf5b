"""One attack on the exporter: the bytes, how to spoil them, and the shortest that still do harm."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

# Shortening stops here; every try may cost a start of the exporter.
SHORTEN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """*pieces* go to *door* one after another, then the connection ends as *ending* says.

    *name* is what `python -m benchmarks.hostile --repeat` takes. *door* is `body` for a snapshot
    that is posted properly, `ingest` or `web` for bytes that are written to that listener.
    """

    name: str
    door: str
    pieces: tuple[bytes, ...]
    ending: str = "wait"

    @property
    def data(self) -> bytes:
        """All that is sent."""
        return b"".join(self.pieces)


# What can be cut in pieces and put together again.
Pieces = TypeVar("Pieces", bytes, tuple[Case, ...])


def spoiled(random: Random, data: bytes) -> bytes:
    """Return *data* with some bytes flipped, inserted, deleted, repeated or cut off."""
    for _ in range(random.choice((1, 1, 2, 4))):
        data = random.choice(SPOILERS)(random, data)
    return data


def _flip(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return (
        data[:at]
        + bytes(byte ^ 1 << random.randrange(8) for byte in data[at : at + 1])
        + (data[at + 1 :])
    )


def _insert(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 1, 3, 40))) + data[at:]


def _delete(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at + random.choice((1, 2, 10, 200)) :]


def _splice(random: Random, data: bytes) -> bytes:
    """Repeat a part of *data* elsewhere in it."""
    begin, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    at = random.randrange(len(data) + 1)
    return data[:at] + data[begin:end] + data[at:]


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


SPOILERS: Final = (_flip, _insert, _delete, _splice, _truncate)


def shortest(
    data: Pieces, does_harm: Callable[[Pieces], bool], seconds: float = SHORTEN_SECONDS
) -> Pieces:
    """Return what is left of *data* when halves, quarters and so on that do not matter are cut.

    Stops after *seconds* with what it has.
    """
    deadline = time.monotonic() + seconds
    size = (len(data) + 1) // 2
    while size:
        at = 0
        while at < len(data) and time.monotonic() < deadline:
            without = data[:at] + data[at + size :]
            if does_harm(without):
                data = without
            else:
                at += size
        size = (size + 1) // 2 if size > 1 else 0
    return data
