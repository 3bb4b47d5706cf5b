"""A PCIe link: its generation, and its traffic from the best source there is."""

from collections.abc import Iterator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.readings.fields import Field
from exporter.nvml.readings.gpm import METRICS, PCIE, Gpm
from exporter.nvml.readings.pcie_link import LINK_SECONDS, PcieLink
from exporter.nvml.readings.pcie_traffic import FIELDS, PcieByteCounters, PcieThroughput
from exporter.nvml.sample import pcie_bytes_per_second
from exporter.nvml.timing import Timing
from tests.exporter.nvml.driver import TIMES_OUT, Driver, Fails

UTILIZATION, RESTING = "nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=0)
GENERATION = "nvmlDeviceGetCurrPcieLinkGeneration"
STATE, REASONS = "nvmlDeviceGetPerformanceState", "nvmlDeviceGetCurrentClocksEventReasons"
AT_WORK = {STATE: 0, UTILIZATION: SimpleNamespace(gpu=97), GENERATION: 4}


@pytest.mark.parametrize(
    ("changes", "generation"),
    [
        ({GENERATION: Fails()}, None),
        ({}, 4),
        ({UTILIZATION: RESTING}, None),
        ({STATE: 8}, None),  # A screen's few percent at rest.
        ({STATE: 2}, 4),  # CUDA on cards with a screen.
        ({STATE: 32}, 4),  # Unknown.
        ({STATE: Fails()}, 4),
        ({UTILIZATION: Fails()}, None),
        ({UTILIZATION: Fails(), REASONS: 0x1}, None),
        ({UTILIZATION: Fails(), REASONS: 0x4}, 4),
    ],
)
def test_generation_is_told_of_a_gpu_at_work_only(
    changes: dict[str, Any], generation: int | None
) -> None:
    """An idle GPU's link slows down to save power: not a degraded link, and no series."""
    ask = Driver(**AT_WORK | changes).opened()

    assert PcieLink(15.0).read(ask, 1.0) == {"pcie_link_generation": generation}


# In seconds: what changes at the GPU, and the generation that is told.
@pytest.mark.parametrize(
    "looks",
    [
        # A slowed link shows after a while, a timeout costs one reading.
        [
            (1.0, {}, 4),
            (LINK_SECONDS, {GENERATION: 3}, 4),
            (1.0 + LINK_SECONDS, {}, 3),
            (1.0 + 2 * LINK_SECONDS, {GENERATION: TIMES_OUT}, None),
            (2.0 + 2 * LINK_SECONDS, {GENERATION: 4}, 4),
        ],
        # At rest it is looked at each time, so that short work is seen.
        [(1.0, {UTILIZATION: RESTING}, None), (2.0, {UTILIZATION: SimpleNamespace(gpu=5)}, 4)],
        # Between two steps the series is not gone; after a window of rest it is.
        [(1.0, {}, 4), (16.0, {UTILIZATION: RESTING, GENERATION: 1}, 4), (17.0, {}, None)],
    ],
    ids=["slowed", "short work", "pause"],
)
def test_link_is_looked_at_now_and_then(
    looks: list[tuple[float, dict[str, Any], int | None]],
) -> None:
    driver, link = Driver(**AT_WORK), PcieLink(15.0)
    ask, told = driver.opened(), []
    for now, changes, _ in looks:
        driver.answers |= changes
        told.append(link.read(ask, now)["pcie_link_generation"])

    assert told == [generation for _, _, generation in looks]


@pytest.mark.parametrize(
    ("generation", "lanes", "carries"),
    [
        (1, 1, 250e6),
        (2, 4, 2e9),
        (3, 16, 8e9 / 8 * 128 / 130 * 16),
        (4, 16, 16e9 / 8 * 128 / 130 * 16),
        (5, 8, 32e9 / 8 * 128 / 130 * 8),
        (6, 16, 64e9 / 8 * 242 / 256 * 16),
        (7, 16, None),  # Of a GPU that is newer than this exporter.
        (None, 16, None),
        (5, None, None),
    ],
)
def test_pcie_link_carries_what_is_left_of_its_transfers(
    generation: int | None, lanes: int | None, carries: float | None
) -> None:
    """Rounded up by less than a thousandth: a counter may not wrap sooner than is thought."""
    rate = pcie_bytes_per_second(generation, lanes)
    assert rate == carries or (carries and rate and carries <= rate < 1.001 * carries)


TIMING = Timing(window_seconds=3.0)
BLOCKING = "nvmlDeviceGetPcieThroughput"
MIB = 2**20


def gpm(*told: tuple[float, float]) -> dict[str, Any]:
    """Answers of a GPU whose GPM tells MiB sent and received, the last for ever."""
    return {
        "gpm_support": True,
        "gpm_memory": object,
        "gpm_sample": "a sample",
        "gpm_metrics": _each(*(dict(zip(PCIE, rates, strict=True)) for rates in told)),
    }


def byte_counters(transmit: int, receive: int) -> dict[str, Any]:
    """Answers of a GPU that counts so many bytes in each reading, in more than 32 bits."""
    totals = (
        dict(zip(FIELDS, (2**40 + n * transmit, 2**40 + n * receive), strict=True)) for n in count()
    )
    return {"field_values": lambda *_: next(totals)}


def blocking(*told: tuple[float, float]) -> dict[str, Any]:
    """Answers of a GPU on which the call that blocks tells KB, the last for ever."""
    of_direction = [_each(*rates) for rates in zip(*told, strict=True)]
    return {BLOCKING: lambda _, direction: of_direction[direction]()}


def _each(*answers: Any) -> Any:
    def forever() -> Iterator[Any]:
        yield from answers
        while True:
            yield answers[-1]

    iterator = forever()
    return lambda *_: next(iterator)


class Link:
    """Reads GPM and PCIe of one GPU each second, as the slow job does."""

    def __init__(self, **answers: Any) -> None:
        self.driver = Driver(**answers)
        self.ask = self.driver.opened()
        self.now = 100.0
        self._gpm = Gpm(TIMING.window_seconds)
        self._pcie = PcieThroughput(TIMING, self._gpm)

    def read(self) -> dict[str, Any]:
        self.now += 1.0
        self._gpm.read(self.ask, self.now)
        return self._pcie.read(self.ask, self.now)

    def reads(self, number: int) -> list[dict[str, Any]]:
        return [self.read() for _ in range(number)]


def told(transmit: float, receive: float, source: str) -> dict[str, Any]:
    return {
        "pcie_transmit_bytes_per_second": transmit,
        "pcie_receive_bytes_per_second": receive,
        "pcie_source": source,
    }


BY_CALL = told(5000, 6000, "sampled")  # In KB of 1000 bytes each.


def test_gpu_that_tells_nothing_has_no_throughput_and_is_asked_once() -> None:
    """A virtual GPU has no source: there is no reading, and nothing waits for one."""
    link = Link()

    assert link.reads(3) == [{}] * 3
    assert set(link.driver.asked.values()) == {1}


@pytest.mark.parametrize(
    ("answers", "best", "not_asked"),
    [
        (
            gpm((1, 2)) | byte_counters(3, 4) | blocking((5, 6)),
            told(MIB, 2 * MIB, "gpm"),
            {BLOCKING, "field_values"},
        ),
        (byte_counters(3, 4) | blocking((5, 6)), told(3, 4, "byte_counter"), {BLOCKING}),
        (blocking((5, 6)), BY_CALL, set()),
        # GPM refuses these metrics, as on a part of a GPU.
        (
            gpm((1, 2)) | {"gpm_metrics": dict.fromkeys(METRICS[:4], 50.0)} | blocking((5, 6)),
            BY_CALL,
            set(),
        ),
        # GPM and counters stand still while the call shows traffic: they are not believed.
        (gpm((0, 0)) | byte_counters(0, 0) | blocking((5, 6)), BY_CALL, set()),
        (gpm((0, 0)) | blocking((0, 0)), told(0, 0, "gpm"), set()),
    ],
    ids=["GPM", "counters", "call", "no PCIe in GPM", "stuck at 0", "idle"],
)
def test_best_source_is_used_and_no_later_one_asked(
    answers: dict[str, Any], best: dict[str, Any], not_asked: set[str]
) -> None:
    link = Link(**answers)

    assert link.reads(4)[-1] == best
    assert not not_asked & link.driver.asked.keys()


@pytest.mark.parametrize(
    ("fails", "then"),
    [
        # A timeout of GPM is no reading once, and no call that blocks.
        (TIMES_OUT, {}),
        # When GPM is refused from now on, as once MIG is switched on, the next source serves.
        (Fails(), BY_CALL),
    ],
    ids=["times out", "is taken away"],
)
def test_source_that_fails(fails: Fails, then: dict[str, Any]) -> None:
    link = Link(**gpm((1, 2)), **blocking((5, 6)))
    assert link.reads(2)[1] == told(MIB, 2 * MIB, "gpm")
    link.driver.answers["gpm_sample"] = fails
    assert link.read() == then
    link.driver.answers["gpm_sample"] = "a sample"

    assert link.read() == (then or told(MIB, 2 * MIB, "gpm"))
    assert (BLOCKING in link.driver.asked) == bool(then)


def test_throughput_is_the_mean_over_the_window() -> None:
    """Bursts and rests are told by their mean, and what is older than the window is forgotten.

    After the first reading the two directions take turns, each telling its last meanwhile. After a
    reset no old rate is in the mean.
    """
    link = Link(**blocking((90, 9), (30, 3), (60, 6), (0, 0), (7, 7)))
    readings = link.reads(4)

    assert [r["pcie_transmit_bytes_per_second"] for r in readings] == [90e3, 90e3, 70e3, 50e3]
    assert readings[3]["pcie_receive_bytes_per_second"] == 4000
    link.ask = link.driver.opened()
    link.driver.answers |= blocking((30, 3))
    assert link.read() == told(30_000, 3000, "sampled")


def test_source_that_has_told_of_traffic_is_believed_when_it_rests() -> None:
    """Once GPM has counted a byte its 0 is 0, and the call that blocks is made no more."""
    link = Link(**gpm((0, 0), (3, 3), (0, 0)), **blocking((5, 6)))
    sources = [reading.get("pcie_source") for reading in link.reads(2)]
    asked = link.driver.asked[BLOCKING]

    assert sources == [None, "sampled"]
    assert link.reads(5)[-1] == told(0, 0, "gpm")
    assert link.driver.asked[BLOCKING] == asked


# Above 32 bits, so that it is known not to wrap there.
WIDE = 5_000_000_000
BITS_32 = 2**32


class Counting(Driver):
    """A GPU on a link of *generation* and *lanes*, that has sent and received *counts*."""

    def __init__(self, *counts: int, generation: Any = 1, lanes: Any = 4) -> None:
        super().__init__(
            field_values=self.tell,
            nvmlDeviceGetMaxPcieLinkGeneration=generation,
            nvmlDeviceGetMaxPcieLinkWidth=lanes,
        )
        self.counts = counts
        self.counters = PcieByteCounters(interval_seconds=1.0, longest_gap_seconds=15.0)
        self.ask = self.opened()

    def tell(self, handle: object, fields: Sequence[Field]) -> dict[Field, int]:
        return dict(zip(FIELDS, self.counts, strict=True))

    def read(self, now: float, *counts: int) -> tuple[float, float] | None:
        self.counts = counts or self.counts
        return self.counters.read(self.ask, now)

    def may_tell(self) -> bool:
        return self.counters.may_tell(self.ask)


# A counter above 32 bits is trusted on the fastest link; one of 32 bits, that may wrap once, on a
# slow one. One that passes 32 bits had not shown its width before.
@pytest.mark.parametrize(
    ("before", "after", "link", "gap", "rates"),
    [
        ((WIDE, WIDE), (WIDE + 50 * 10**9, WIDE + 10**9), (5, 16), 2.0, (25e9, 5e8)),
        ((0, 0), (700_000_000, 1000), (1, 4), 1.0, (7e8, 1000.0)),
        ((BITS_32 - 1000, BITS_32 - 1), (0, 99), (1, 4), 1.0, (1000.0, 100.0)),
        ((BITS_32 - 10, 0), (BITS_32 + 90, 100), (5, 16), 1.0, (100.0, 100.0)),
        ((0, 0), (100, 100), (1, 4), 4.0, (25.0, 25.0)),
        # After so long two wraps are possible, or what was counted is older than the window.
        ((0, 0), (100, 100), (1, 4), 5.0, None),
        ((WIDE, WIDE), (WIDE + 100, WIDE + 100), (1, 4), 16.0, None),
    ],
)
def test_rate_is_what_was_counted_where_that_is_certain(
    before: tuple[int, int],
    after: tuple[int, int],
    link: tuple[int, int],
    gap: float,
    rates: tuple[float, float] | None,
) -> None:
    """A wrap gives neither a negative rate nor one beyond the link's speed."""
    driver = Counting(*before, generation=link[0], lanes=link[1])
    assert driver.read(10.0) is None

    assert driver.read(10.0 + gap, *after) == rates
    assert driver.may_tell()


@pytest.mark.parametrize(
    ("generation", "lanes"), [(5, 16), (4, 8), (3, 4), (99, 1), (Fails(), 16), (5, Fails())]
)
def test_counter_of_32_bits_is_not_used_where_it_may_wrap_twice(
    generation: object, lanes: object
) -> None:
    """On a link that carries 4 GiB in an interval, or an unknown one, it would tell too little."""
    driver = Counting(0, 0, generation=generation, lanes=lanes)
    driver.read(1.0)

    assert driver.read(2.0, 5, 5) is None
    assert not driver.may_tell()


@pytest.mark.parametrize("counts", [(0, WIDE + 10), (WIDE + 10, 7), (WIDE + 10**12, WIDE)])
def test_counter_that_was_reset_is_no_rate(counts: tuple[int, int]) -> None:
    """A count that fell, or grew beyond the link's speed, is left out; then it goes on."""
    driver = Counting(WIDE, WIDE)
    driver.read(1.0)

    assert driver.read(2.0, *counts) is None
    assert driver.may_tell()
    assert driver.read(3.0, *(count + 8 for count in counts)) == (8.0, 8.0)


def test_failure_that_passes_is_no_reading_once() -> None:
    """After a timeout the counters are compared from scratch."""
    driver = Counting(WIDE, WIDE)
    driver.read(1.0)
    driver.fail("field_values", code=pynvml.NVML_ERROR_TIMEOUT)
    assert driver.read(2.0) is None
    driver.answers["field_values"] = driver.tell

    assert driver.read(3.0) is None
    assert driver.read(4.0, WIDE + 100, WIDE + 200) == (100.0, 200.0)
