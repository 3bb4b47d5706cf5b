"""A GPU's links: PCIe, its generation and its traffic from the best source there is, and NVLink.

Healthy and sick ones through the real bindings are in the golden files.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pynvml
import pytest

from exporter.nvml.readings.fields import Field
from exporter.nvml.readings.gpm import PCIE, Gpm
from exporter.nvml.readings.nvlink import (
    ALL_LINKS,
    BYTES_EVERY_SECONDS,
    LINKS_EVERY_SECONDS,
    NvLink,
)
from exporter.nvml.readings.pcie_link import LINK_SECONDS, PcieLink
from exporter.nvml.readings.pcie_traffic import FIELDS, PcieByteCounters, PcieThroughput, Rates
from exporter.nvml.timing import Timing
from tests.exporter.nvml.drivers import TIMES_OUT, Driver, Fails, FieldAnswer, fields

UTILIZATION, RESTING = "nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=0)
GENERATION = "nvmlDeviceGetCurrPcieLinkGeneration"
STATE, REASONS = "nvmlDeviceGetPerformanceState", "nvmlDeviceGetCurrentClocksEventReasons"
AT_WORK = {STATE: 0, UTILIZATION: SimpleNamespace(gpu=97), GENERATION: 4}
# In seconds: what changes at the GPU, and the generation that is told.
Look = tuple[float, dict[str, Any], int | None]


def once(generation: int | None, **changes: Any) -> list[Look]:
    return [(1.0, changes, generation)]


GENERATIONS: dict[str, list[Look]] = {
    # An idle GPU's link slows down to save power: not a degraded link, and no series.
    "at rest": once(None, **{UTILIZATION: RESTING}),
    "a screen's few percent at rest": once(None, **{STATE: 3}),
    "CUDA on cards with a screen": once(4, **{STATE: 2}),
    "unknown state": once(4, **{STATE: 32}),
    "no utilization, idle": once(None, **{UTILIZATION: Fails(), REASONS: 0x1}),
    "no utilization, at work": once(4, **{UTILIZATION: Fails(), REASONS: 0x4}),
    # A slowed link shows after a while, a timeout costs one reading.
    "slowed": [
        (1.0, {}, 4),
        (LINK_SECONDS, {GENERATION: 3}, 4),
        (1.0 + LINK_SECONDS, {}, 3),
        (1.0 + 2 * LINK_SECONDS, {GENERATION: TIMES_OUT}, None),
        (2.0 + 2 * LINK_SECONDS, {GENERATION: 4}, 4),
    ],
    # Between two steps the series is not gone; after a window of rest it is. Short work is seen.
    "pause": [
        (1.0, {}, 4),
        (16.0, {UTILIZATION: RESTING, GENERATION: 1}, 4),
        (17.0, {}, None),
        (18.0, {UTILIZATION: SimpleNamespace(gpu=5)}, 1),
    ],
}


@pytest.mark.parametrize("looks", GENERATIONS.values(), ids=GENERATIONS)
def test_generation_is_told_of_a_gpu_at_work_only(looks: list[Look]) -> None:
    driver, link = Driver(**AT_WORK), PcieLink(15.0)
    ask, told = driver.opened(), []
    for now, changes, _ in looks:
        driver.answers |= changes
        told.append(link.read(ask, now)["pcie_link_generation"])

    assert told == [generation for _, _, generation in looks]


MIB = 2**20


@dataclass
class FixedGpm:
    """*rates* in MiB: False where GPM is refused, True where it has none now."""

    rates: Rates | bool = False

    def mean(self, metric: int) -> float | None:
        return None if isinstance(self.rates, bool) else self.rates[PCIE.index(metric)]

    def may_tell(self, metric: int) -> bool:
        return self.rates is not False


def told(transmit: float, receive: float, source: str) -> dict[str, Any]:
    return {
        "pcie_transmit_bytes_per_second": transmit,
        "pcie_receive_bytes_per_second": receive,
        "pcie_source": source,
    }


BY_CALL = told(5000, 6000, "sampled")  # In KB of 1000 bytes each.


# What the call that blocks tells; for each second the rates of GPM, and what is told. Which source
# is used where all tell is on golden pages.
@pytest.mark.parametrize(
    ("call", "looks"),
    [
        (
            (5, 6),
            [
                # GPM stands still while the call shows traffic: it is not believed, until it moves.
                ((0, 0), BY_CALL),
                ((1, 2), told(MIB, 2 * MIB, "gpm")),
                ((0, 0), told(0, 0, "gpm")),
                # A timeout of GPM is no reading once, and no call that blocks. When it is refused
                # from now on, as once MIG is switched on, the next source serves.
                (True, {}),
                (False, BY_CALL),
            ],
        ),
        ((0, 0), [((0, 0), told(0, 0, "gpm"))]),
        (None, [(False, {}), (False, {})]),
    ],
    ids=["stuck at 0", "idle", "virtual GPU"],
)
def test_best_source_is_used(
    call: Rates | None, looks: list[tuple[Rates | bool, dict[str, Any]]]
) -> None:
    driver, gpm, found = Driver(), FixedGpm(), []
    if call is not None:
        driver.answers["nvmlDeviceGetPcieThroughput"] = lambda _, direction: call[direction]
    pcie, ask = PcieThroughput(Timing(window_seconds=3.0), cast(Gpm, gpm)), driver.opened()
    for now, (gpm.rates, _) in enumerate(looks):
        found.append(pcie.read(ask, float(now)))

    assert found == [reading for _, reading in looks]


# Above 32 bits, so that it is known not to wrap there.
WIDE = 5_000_000_000
BITS_32 = 2**32
SLOW, FAST = (1, 4), (5, 16)  # Generation and lanes.
UNKNOWN_LINKS: list[tuple[Any, Any]] = [(99, 1), (5, Fails())]
# What was sent and received at a second, and both in bytes a second as far as that is certain.
Counts = list[tuple[float, tuple[int, int] | Fails, tuple[float, float] | None]]


def counts(gap: float, before: int, after: int, rate: float | None) -> Counts:
    """Count the same in both directions, *gap* seconds apart."""
    told = None if rate is None else (rate, rate)
    return [(1.0, (before, before), None), (1.0 + gap, (after, after), told)]


# A count that fell, or grew beyond the link's speed, is left out; then it goes on.
ODD = (((WIDE + 10, 7), (WIDE + 18, 15)), ((WIDE + 10**12, WIDE), (WIDE + 10**12 + 8, WIDE + 8)))
BOTH = (WIDE, WIDE)


# Of a link: what is counted, and whether one waits for more.
@pytest.mark.parametrize(
    ("link", "looks", "waits"),
    [
        (FAST, counts(2.0, WIDE, WIDE + 50 * 10**9, 25e9), True),
        # One of 32 bits may wrap once on a slow link: no rate is negative or too high.
        (SLOW, counts(1.0, BITS_32 - 1000, 0, 1000.0), True),
        # One that passes 32 bits had not shown its width before.
        (FAST, [(1.0, (BITS_32 - 10, 0), None), (2.0, (BITS_32 + 90, 9), (100.0, 9.0))], True),
        # After so long two wraps are possible, or what was counted is older than the window.
        (SLOW, counts(5.0, 0, 100, None), True),
        (FAST, counts(16.0, WIDE, WIDE + 100, None), True),
        # On a link that carries 4 GiB in an interval, or an unknown one, it would tell too little.
        *((link, counts(1.0, 0, 5, None), False) for link in ((4, 8), *UNKNOWN_LINKS)),
        *(
            (SLOW, [(1.0, BOTH, None), (2.0, odd, None), (3.0, later, (8.0, 8.0))], True)
            for odd, later in ODD
        ),
        # After a timeout the counters are compared from scratch.
        (SLOW, [(1.0, BOTH, None), (2.0, TIMES_OUT, None), (3.0, BOTH, None)], True),
    ],
)
def test_rate_is_what_was_counted_where_that_is_certain(
    link: tuple[Any, Any], looks: Counts, waits: bool
) -> None:
    driver = Driver(
        nvmlDeviceGetMaxPcieLinkGeneration=link[0], nvmlDeviceGetMaxPcieLinkWidth=link[1]
    )
    ask, counters = driver.opened(), PcieByteCounters(1.0, longest_gap_seconds=15.0)
    told = []
    for now, counted, _ in looks:
        if isinstance(counted, tuple):
            driver.answers["field_values"] = dict(zip(FIELDS, counted, strict=True))
        else:
            driver.answers["field_values"] = counted
        told.append(counters.read(ask, now))

    assert told == [rates for _, _, rates in looks]
    assert counters.may_tell(ask) == waits


REPLAY = pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY
CRC = pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC
SENT = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS)
RECEIVED = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS)
SENT_5 = (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, ALL_LINKS)
BYTES = ("nvlink_transmit_bytes", "nvlink_receive_bytes")
RECEIVED_5 = (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, ALL_LINKS)


class NvLinks(Driver):
    """A GPU with *states* of its links, and *fields* that it can tell; read every few seconds."""

    def __init__(self, *states: int, told: dict[Field, FieldAnswer] | None = None, **answers: Any):
        self.states = dict(enumerate(states))
        self.told = told or {}
        super().__init__(
            nvmlDeviceGetNvLinkState=self.state, nvmlDeviceGetFieldValues=fields(self.told)
        )
        self.answers |= answers
        self._opened = self.opened()
        self._part = NvLink()
        self._now = 0.0

    def state(self, handle: object, link: int) -> int | Fails:
        # An older driver calls the number of a link that it does not know invalid.
        unknown = Fails(pynvml.NVML_ERROR_INVALID_ARGUMENT if link > 3 else Fails().code)
        return self.states.get(link, unknown)

    def set_each(self, field: int, *values: int) -> None:
        """Let the links tell *values*, from link 0 on."""
        self.told |= {(field, link): value for link, value in enumerate(values)}

    def read(self, after_seconds: float = LINKS_EVERY_SECONDS) -> dict[str, Any]:
        self._now += after_seconds
        return self._part.read(self._opened, self._now)


def test_worst_links_are_told_one_by_one() -> None:
    """Those that are down come first, then those with most errors; healthy ones are not told."""
    gpu = NvLinks(*[1] * 6)
    gpu.set_each(CRC, 0, 7, 0, 90, 8, 0)
    told = []
    for down in ({}, {0: 0}, {3: 0, 5: 0}):
        gpu.states |= down
        reading = gpu.read()
        told.append((reading["nvlink_link_errors"], reading["nvlink_link_states"]))

    assert told == [({"3": 90, "4": 8}, None), ({"3": 90}, {"0": 0}), (None, {"0": 0, "3": 0})]


def test_errors_go_on_where_a_link_is_gone_or_begins_anew() -> None:
    """Neither the sum nor a link's own series falls, which would look like many errors."""
    gpu = NvLinks(1, 1)
    told = []
    for values in ((1000, 50), (1001,), (1002, 0), (1002, 3)):
        gpu.states[1] = int(len(values) > 1)
        gpu.told.clear()
        gpu.set_each(CRC, *values)
        gpu.set_each(REPLAY, *values[1:])
        reading = gpu.read()
        told.append((reading["nvlink_errors"]["crc"], reading["nvlink_link_errors"].get("1")))

    assert told == [(1050, 50), (1051, None), (1052, 50), (1055, 53)]


def test_what_is_counted_depends_on_the_age_of_gpu_and_driver() -> None:
    """A Blackwell counts bytes and recoveries under other numbers, and the other errors not.

    An older driver has counters in place of fields, and both kinds of checksum are one. Where
    nothing is counted there is no series, instead of 0.
    """
    recovered = {(pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, link): 1 for link in (0, 1)}
    new = NvLinks(1, 1, told={SENT_5: 3, RECEIVED_5: 5, **recovered})
    counters = [1, 10, 100, 1000]
    old = NvLinks(1, 1, nvmlDeviceGetNvLinkErrorCounter=lambda _, link, counter: counters[counter])
    names = ("nvlink_links", "nvlink_errors", "nvlink_link_recoveries", *BYTES)

    for gpu, *told in (
        (new, 2, {"recovery": 2}, {"0": 1, "1": 1}, 3, 5),
        (old, 2, {"replay": 2, "recovery": 20, "crc": 2200}, {"0": 10, "1": 10}, None, None),
        (NvLinks(1), 1, None, {"0": 0}, None, None),
    ):
        reading = gpu.read()
        assert [reading[name] for name in names] == told
    assert NvLinks().read() == {}


def test_errors_go_on_where_a_call_times_out() -> None:
    """A driver may have both fields and counters, and both count the same since it was loaded."""
    gpu = NvLinks(1, nvmlDeviceGetNvLinkErrorCounter=lambda *_: 1000)
    gpu.set_each(CRC, 1000)
    values, told = gpu.answers["nvmlDeviceGetFieldValues"], []
    for answer in (values, TIMES_OUT, values):
        gpu.answers["nvmlDeviceGetFieldValues"] = answer
        told.append(gpu.read()["nvlink_errors"])

    assert [each.get("crc") for each in told] == [1000, None, 1000]


def test_what_is_refused_for_a_while_is_back_soon() -> None:
    """While all links retrain, or a call times out; that is not cached for an hour."""
    gpu = NvLinks(1, told={SENT: 1, RECEIVED: 2})
    gpu.read()
    gpu.told.clear()
    gone = gpu.read(BYTES_EVERY_SECONDS)
    assert (gone["nvlink_links"], gone["nvlink_transmit_bytes"]) == (1, None)
    for sent in (3, 4):
        gpu.told |= {SENT: sent, RECEIVED: 2}
        assert gpu.read(BYTES_EVERY_SECONDS)["nvlink_transmit_bytes"] == sent * 1024

    # A timeout takes the series for a moment, and does not make a GPU of no link.
    gpu.answers["link_state"] = TIMES_OUT
    assert gpu.read() == {}
    del gpu.answers["link_state"]
    assert gpu.read(1.0)["nvlink_links"] == 1
