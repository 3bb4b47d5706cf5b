"""Sizes and bandwidths of collectives, as nccl-tests reports them, so that figures compare.

The source is https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. The size S of an
operation is the size of the whole array in bytes: what each rank reduces in an all-reduce, what
each rank has received after an all-gather, what each rank puts into a reduce-scatter. A rank's own
share of the last two is S/n. With t seconds an operation,

    algorithm bandwidth = S/t
    bus bandwidth = S/t * factor,  2(n-1)/n for an all-reduce, (n-1)/n for the other two.

The bus bandwidth does not depend on the number of ranks n, so it compares with the hardware's peak.
"""

from typing import Final, Literal

Collective = Literal["all_reduce", "all_gather", "reduce_scatter"]

COLLECTIVES: Final[tuple[Collective, ...]] = ("all_reduce", "all_gather", "reduce_scatter")
# nccl-tests rounds a rank's share down to this many bytes, which NCCL's widest loads need.
ALIGNMENT_BYTES: Final = 16


def whole_size(size_bytes: int, ranks: int) -> int:
    """Return the largest size up to *size_bytes* that *ranks* can share equally; at least one."""
    share = max(size_bytes // ranks // ALIGNMENT_BYTES, 1) * ALIGNMENT_BYTES
    return share * ranks


def algorithm_bandwidth(size_bytes: int, seconds: float) -> float:
    """Return bytes per second of the whole array."""
    return size_bytes / seconds


def bus_bandwidth(collective: Collective, size_bytes: int, seconds: float, ranks: int) -> float:
    """Return bytes per second over the slowest link of an ideal algorithm."""
    transfers = 2 if collective == "all_reduce" else 1
    return algorithm_bandwidth(size_bytes, seconds) * transfers * (ranks - 1) / ranks
