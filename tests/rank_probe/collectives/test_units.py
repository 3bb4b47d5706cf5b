"""Sizes and bandwidths are those of nccl-tests, read and shown as people write them."""

import argparse

import pytest

from rank_probe.collectives.command import parse_bytes
from rank_probe.collectives.report import (
    show_bandwidth,
    show_bytes,
    show_seconds,
)
from rank_probe.collectives.timing import (
    COLLECTIVES,
    Collective,
    CollectiveTime,
    whole_size,
)


def took(collective: Collective, size_bytes: int, seconds: float) -> CollectiveTime:
    return CollectiveTime(collective, size_bytes, seconds, seconds, seconds, 1)


@pytest.mark.parametrize(
    ("collective", "expected"),
    [("all_reduce", 1.75e9), ("all_gather", 0.875e9), ("reduce_scatter", 0.875e9)],
)
def test_bus_bandwidth_of_eight_ranks(collective: Collective, expected: float) -> None:
    """1 GB in a second: 2*7/8 for an all-reduce, 7/8 for the other two."""
    assert took(collective, 10**9, 1.0).bus_bandwidth(8) == pytest.approx(expected)
    assert took(collective, 10**9, 2.0).algorithm_bandwidth == pytest.approx(0.5e9)


def test_every_collective_has_no_bus_on_one_rank() -> None:
    """A rank alone moves nothing."""
    assert {took(each, 4096, 1.0).bus_bandwidth(1) for each in COLLECTIVES} == {0.0}


def test_whole_array_is_shared_equally() -> None:
    """A rank's share is rounded down to 16 bytes, as nccl-tests does, and is never empty."""
    assert whole_size(4096, 4) == 4096
    assert whole_size(4096, 3) == 3 * 1360
    assert whole_size(8, 4) == 64


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("4K", 4096), ("4KiB", 4096), ("256 MiB", 2**28), ("1gb", 2**30)],
)
def test_size_is_read(text: str, size: int) -> None:
    """Units are binary, as in nccl-tests' -b and -e."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "4X", "-1", "1.5M", "K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """The message shows how to write one."""
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size such as"):
        parse_bytes(text)


def test_values_are_shown_with_a_fitting_unit() -> None:
    """Sizes are binary, bandwidths decimal."""
    assert [show_bytes(size) for size in (64, 4096, 2**28)] == ["64 B", "4 KiB", "256 MiB"]
    assert [show_seconds(value) for value in (2.5, 0.0123, 45.6e-6, 5e-8)] == [
        "2.50 s",
        "12.3 ms",
        "45.6 µs",
        "50 ns",
    ]
    assert [show_bandwidth(value) for value in (2.5e11, 1.5e6, 12e3, 3)] == [
        "250 GB/s",
        "1.50 MB/s",
        "12.0 kB/s",
        "3.00 B/s",
    ]
