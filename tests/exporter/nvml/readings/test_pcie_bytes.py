from collections.abc import Sequence
from typing import Any

import pynvml
import pytest

from exporter.nvml.readings.fields import Field
from exporter.nvml.readings.pcie_traffic import FIELDS, PcieByteCounters
from exporter.nvml.readings.query import Ask
from tests.exporter.nvml.driver import Driver, Fails

# Above 32 bits, so that it is known not to wrap there.
WIDE = 5_000_000_000
BITS_32 = 2**32


class FakeCounters(Driver):
    """A GPU on a link of *generation* and *lanes*, that has sent and received *counts*."""

    def __init__(self, transmit: int, receive: int, generation: Any = 1, lanes: Any = 4) -> None:
        super().__init__(
            field_values=self.tell,
            nvmlDeviceGetMaxPcieLinkGeneration=generation,
            nvmlDeviceGetMaxPcieLinkWidth=lanes,
        )
        self.counts = [transmit, receive]

    def tell(self, handle: object, fields: Sequence[Field]) -> dict[Field, int | float | None]:
        return dict(zip(FIELDS, self.counts, strict=True))

    def move(self, transmit: int, receive: int) -> None:
        """Count on, in 32 bits unless there were more before."""
        self.counts = [
            count + moved if count >= BITS_32 else (count + moved) % BITS_32
            for count, moved in zip(self.counts, (transmit, receive), strict=True)
        ]


def a_reader() -> PcieByteCounters:
    return PcieByteCounters(interval_seconds=1.0, longest_gap_seconds=15.0)


def read_twice(
    driver: FakeCounters, counters: PcieByteCounters, transmit: int, receive: int, gap: float = 1.0
) -> tuple[float, float] | None:
    """Return what is told of bytes that are moved in *gap* seconds."""
    ask = driver.opened()
    assert counters.read(ask, 10.0) is None
    driver.move(transmit, receive)
    return counters.read(ask, 10.0 + gap)


def test_gpu_without_counters_tells_nothing() -> None:
    """If the fields are not supported, there is no reading, and nothing waits for one."""
    driver, counters = Driver(field_values=Fails()), a_reader()
    ask = driver.opened()

    assert [counters.read(ask, now) for now in (1.0, 2.0)] == [None, None]
    assert not counters.may_tell(ask)


def test_counter_beyond_32_bits_is_a_rate_on_any_link() -> None:
    """Once it was seen above 32 bits a counter is trusted on the fastest link."""
    driver, counters = FakeCounters(WIDE, WIDE, generation=5, lanes=16), a_reader()

    assert read_twice(driver, counters, 50 * 10**9, 10**9, gap=2.0) == (25e9, 5e8)
    assert counters.may_tell(driver.opened())


@pytest.mark.parametrize("start", [0, 2**31, BITS_32 - 1000, BITS_32 - 1])
def test_counter_of_32_bits_that_wraps_is_right_on_a_slow_link(start: int) -> None:
    """A wrap gives neither a negative rate nor one beyond the link's speed."""
    driver, counters = FakeCounters(start, start), a_reader()

    assert read_twice(driver, counters, 700_000_000, 1000) == (7e8, 1000.0)
    assert counters.may_tell(driver.opened())


@pytest.mark.parametrize(
    ("generation", "lanes"), [(5, 16), (4, 8), (3, 4), (99, 1), (Fails(), 16), (5, Fails())]
)
def test_counter_of_32_bits_is_not_used_where_it_may_wrap_twice(
    generation: object, lanes: object
) -> None:
    """On a link that carries 4 GiB in an interval, or an unknown one, it would tell too little."""
    driver, counters = FakeCounters(0, 0, generation, lanes), a_reader()

    assert read_twice(driver, counters, BITS_32 + 5, 5) is None
    assert not counters.may_tell(driver.opened())


def test_counter_that_passes_32_bits_is_used_from_then_on() -> None:
    """A GPU that was just switched on has a small count, which does not show its width."""
    driver, counters = FakeCounters(BITS_32 - 10, 0, generation=5, lanes=16), a_reader()
    ask = driver.opened()
    counters.read(ask, 1.0)
    driver.counts = [BITS_32 + 90, 100]

    assert counters.read(ask, 2.0) == (100.0, 100.0)


@pytest.mark.parametrize("counts", [(0, WIDE + 10), (WIDE + 10, 7), (WIDE + 10**12, WIDE)])
def test_counter_that_was_reset_is_no_rate(counts: tuple[int, int]) -> None:
    """A count that fell, or grew beyond the link's speed, is left out; then it goes on."""
    driver, counters = FakeCounters(WIDE, WIDE), a_reader()
    ask = driver.opened()
    counters.read(ask, 1.0)
    driver.counts = list(counts)
    at_reset = counters.read(ask, 2.0)
    assert counters.may_tell(ask)
    driver.counts = [count + 8 for count in counts]

    assert at_reset is None
    assert counters.read(ask, 3.0) == (8.0, 8.0)


def test_late_reading_of_32_bits_is_no_rate() -> None:
    """If the worker was held up for so long that two wraps are possible, the rate is unknown."""
    driver, counters = FakeCounters(0, 0), a_reader()

    assert read_twice(driver, counters, 100, 100, gap=4.0) == (25.0, 25.0)
    assert read_twice(FakeCounters(0, 0), a_reader(), 100, 100, gap=5.0) is None


def test_reading_after_a_long_pause_is_no_rate_of_now() -> None:
    """What was counted while nobody asked is older than the window."""
    driver = FakeCounters(WIDE, WIDE)

    assert read_twice(driver, a_reader(), 100, 100, gap=16.0) is None


def test_failure_that_passes_is_no_reading_once() -> None:
    """After a timeout the counters are compared from scratch."""
    driver, counters = FakeCounters(WIDE, WIDE), a_reader()
    ask: Ask = driver.opened()
    counters.read(ask, 1.0)
    driver.answers["field_values"] = Fails(pynvml.NVML_ERROR_TIMEOUT)
    assert counters.read(ask, 2.0) is None
    driver.answers["field_values"] = driver.tell

    assert counters.read(ask, 3.0) is None
    driver.move(100, 200)
    assert counters.read(ask, 4.0) == (100.0, 200.0)
