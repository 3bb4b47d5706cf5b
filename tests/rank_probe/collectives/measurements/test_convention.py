"""Sizes and bandwidths are those of nccl-tests."""

import pytest

from rank_probe.collectives.measurements.convention import (
    COLLECTIVES,
    Collective,
    algorithm_bandwidth,
    bus_bandwidth,
    whole_size,
)


@pytest.mark.parametrize(
    ("collective", "expected"),
    [("all_reduce", 1.75e9), ("all_gather", 0.875e9), ("reduce_scatter", 0.875e9)],
)
def test_bus_bandwidth_of_eight_ranks(collective: Collective, expected: float) -> None:
    """1 GB in a second: 2*7/8 for an all-reduce, 7/8 for the other two."""
    assert bus_bandwidth(collective, 10**9, 1.0, 8) == pytest.approx(expected)
    assert algorithm_bandwidth(10**9, 2.0) == pytest.approx(0.5e9)


def test_every_collective_has_no_bus_on_one_rank() -> None:
    """A rank alone moves nothing."""
    assert {bus_bandwidth(each, 4096, 1.0, 1) for each in COLLECTIVES} == {0.0}


def test_whole_array_is_shared_equally() -> None:
    """A rank's share is rounded down to 16 bytes, as nccl-tests does, and is never empty."""
    assert whole_size(4096, 4) == 4096
    assert whole_size(4096, 3) == 3 * 1360
    assert whole_size(8, 4) == 64
