"""What is measured, and for how long."""

from dataclasses import dataclass
from typing import Final

from rank_probe.collectives.measurements.convention import COLLECTIVES, whole_size
from rank_probe.collectives.measurements.rounds import Round, rounds

SMALLEST_BYTES: Final = 4 * 2**10
# Beyond this, host memory and loopback are measured for minutes, and nothing new is learned.
LARGEST_BYTES: Final = {"nccl": 256 * 2**20, "gloo": 16 * 2**20}
PAIR_BYTES: Final = {"nccl": 64 * 2**20, "gloo": 4 * 2**20}
FACTOR: Final = 4
SECONDS: Final = 30.0
TIMEOUT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """The sizes and the time that the user asked for; None leaves it to the backend."""

    max_bytes: int | None = None
    pair_bytes: int | None = None
    seconds: float = SECONDS


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of the collectives and messages in bytes, rounds of pairs, and the time for each."""

    sizes_bytes: tuple[int, ...]
    collective_seconds: float
    pair_bytes: int
    rounds: tuple[Round, ...]
    rounds_seconds: float

    def seconds_of_each(self, rounds: int) -> float:
        """Return how long each of *rounds* may take; what is repeated gets as long in all."""
        return self.rounds_seconds / max(rounds, len(self.rounds))


def plan(options: MeasurementOptions, backend: str, ranks: int) -> Plan:
    """Return the plan for *ranks* ranks: half of the time for collectives, half for pairs."""
    largest = options.max_bytes or LARGEST_BYTES[backend]
    sizes = tuple(sizes_up_to(largest, ranks))
    in_rounds = tuple(rounds(ranks))
    return Plan(
        sizes_bytes=sizes,
        collective_seconds=options.seconds / 2 / (len(sizes) * len(COLLECTIVES)),
        pair_bytes=options.pair_bytes or PAIR_BYTES[backend],
        rounds=in_rounds,
        rounds_seconds=options.seconds / 2,
    )


def sizes_up_to(largest: int, ranks: int) -> list[int]:
    """Return the sizes up to *largest* that *ranks* can share equally; at least one."""
    found, size = [], min(SMALLEST_BYTES, largest)
    while size <= largest:
        found.append(whole_size(size, ranks))
        size *= FACTOR
    return list(dict.fromkeys(found))
