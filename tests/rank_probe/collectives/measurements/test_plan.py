"""What is measured follows from the options, the backend and the number of ranks."""

import pytest

from rank_probe.collectives.measurements.plan import MeasurementOptions, plan, sizes_between


def test_sizes_grow_by_the_factor() -> None:
    """From the smallest up to the largest, rounded so that the ranks share them equally."""
    assert sizes_between(4096, 2**20, 4, 4) == [2**12, 2**14, 2**16, 2**18, 2**20]
    assert sizes_between(1, 100, 4, 2) == [32, 64]


def test_backend_has_its_largest_sizes() -> None:
    """Host memory need not be measured for minutes."""
    assert plan(MeasurementOptions(), "nccl", 8).sizes_bytes[-1] == 256 * 2**20
    assert plan(MeasurementOptions(), "gloo", 8).sizes_bytes[-1] == 16 * 2**20
    assert plan(MeasurementOptions(min_bytes=2**26), "gloo", 8).sizes_bytes == (2**26,)


def test_time_is_shared_between_collectives_and_pairs() -> None:
    """Half for each, and what is repeated gets no longer than the first pass in all."""
    found = plan(MeasurementOptions(seconds=12.0, max_bytes=4096), "gloo", 4)

    assert found.collective_seconds == pytest.approx(2.0)
    assert found.seconds_of_each(3) == pytest.approx(2.0)
    assert found.seconds_of_each(18) == pytest.approx(6.0 / 18)
    assert found.seconds_of_each(1) == pytest.approx(2.0)
