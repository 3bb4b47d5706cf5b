"""The traffic of a GPU's PCIe link, from the best available source."""

from typing import Any, Final, Protocol

import pynvml

from exporter.nvml.readings.fields import FieldValues
from exporter.nvml.readings.gpm import PCIE, Gpm
from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.window import ReadingWindow
from exporter.nvml.sample import pcie_bytes_per_second
from exporter.nvml.timing import Timing

# Transmit and receive in bytes a second, as the GPU sees it.
Rates = tuple[float, float]

BYTES_PER_MEBIBYTE: Final = 2**20
# nvml.h says KB/s for nvmlDeviceGetPcieThroughput, but KiB for other readings; if it means 1024
# here too, these rates are 2.3 % low.
BYTES_PER_KILOBYTE: Final = 1000
FIELDS: Final = (
    (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0),
    (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
)
# nvml.h says "Value can be wrapped" but not where; GPUs are known to count in 32 bits, whatever
# type the driver returns. Only a counter that has exceeded 32 bits is known not to wrap there.
WRAPS_AT: Final = 2**32
# How many times the interval a reading may take without risking a second wrap.
PATIENCE: Final = 1.5


class PcieSource(Protocol):
    """One source of the link's traffic; *name* is a value of the label `pcie_source`."""

    @property
    def name(self) -> str: ...

    def read(self, ask: Ask, now: float) -> Rates | None:
        """Return the rates, None if there are none now."""
        ...

    def may_tell(self, ask: Ask) -> bool:
        """Whether to keep waiting for a source that just gave no value."""
        ...


class PcieThroughput:
    """Reads the first source that works: later ones cost more, or see less."""

    def __init__(self, timing: Timing, gpm: Gpm) -> None:
        """Take GPM's part of the answer from *gpm*, which must be read before."""
        self._timing = timing
        self._gpm = gpm
        self._ask: Ask | None = None
        self._readers: tuple[_Reader, ...] = ()

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the source and its means over the window, in bytes a second.

        A source that has returned only 0 since the GPU was opened may be broken, as on some GPU
        models: the next source is read too, and 0 is accepted only if that one shows no traffic.
        """
        if ask is not self._ask:
            self._begin(ask)
        silent: dict[str, Any] = {}
        for reader in self._readers:
            fields = reader.read(ask, now)
            is_enough = reader.has_moved if fields else reader.source.may_tell(ask)
            if is_enough:
                return fields
            silent = silent or fields
        return silent

    def _begin(self, ask: Ask) -> None:
        """Start over with a GPU that was opened, perhaps after a reset."""
        timing = self._timing
        window = timing.window_seconds
        counters = PcieByteCounters(timing.interval_seconds, max(window, timing.patience_seconds))
        self._ask = ask
        self._readers = (
            _Reader(GpmRates(self._gpm)),
            _Reader(counters, ReadingWindow(window), ReadingWindow(window)),
            _Reader(SampledRates(), ReadingWindow(window), ReadingWindow(window)),
        )


class _Reader:
    """A source, and whether it has ever shown traffic.

    One that gives a new value each time has *windows*, for the mean of each direction.
    """

    def __init__(self, source: PcieSource, *windows: ReadingWindow) -> None:
        self.source = source
        self.has_moved = False
        self._windows = windows

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        rates = self.source.read(ask, now)
        if rates is None:
            return {}
        for window, rate in zip(self._windows, rates, strict=False):
            window.add(now, rate)
        transmit, receive = [window.mean() for window in self._windows] or rates
        self.has_moved = self.has_moved or bool(transmit or receive)
        return {
            "pcie_transmit_bytes_per_second": transmit,
            "pcie_receive_bytes_per_second": receive,
            "pcie_source": self.source.name,
        }


class GpmRates:
    """What GPM has counted: continuous, and without extra cost."""

    name = "gpm"

    def __init__(self, gpm: Gpm) -> None:
        self._gpm = gpm

    def read(self, ask: Ask, now: float) -> Rates | None:
        transmit, receive = (self._gpm.mean(metric) for metric in PCIE)
        if transmit is None or receive is None:
            return None
        return transmit * BYTES_PER_MEBIBYTE, receive * BYTES_PER_MEBIBYTE

    def may_tell(self, ask: Ask) -> bool:
        return all(self._gpm.may_tell(metric) for metric in PCIE)


class SampledRates:
    """NVML's own measurement: it blocks for 20 ms, and measures only those.

    The two directions take turns, because each occupies a thread, and maybe the driver, meanwhile.
    """

    name = "sampled"

    def __init__(self) -> None:
        self._rates: dict[int, int] = {}
        self._turns = (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)

    def read(self, ask: Ask, now: float) -> Rates | None:
        for direction in self._turns:
            rate = ask(pynvml.nvmlDeviceGetPcieThroughput, direction)
            if rate is None:
                self._rates.clear()
                return None
            is_known = len(self._rates) == len(self._turns)
            self._rates[direction] = rate * BYTES_PER_KILOBYTE
            if is_known:
                break
        self._turns = (self._turns[1], self._turns[0])
        transmit, receive = (self._rates[direction] for direction in sorted(self._rates))
        return transmit, receive

    def may_tell(self, ask: Ask) -> bool:
        return False  # There is no other source to read instead.


class PcieByteCounters:
    """Bytes per second between two readings of the counters.

    A 32-bit counter that wraps once in between is read correctly; one that wraps twice cannot be.
    So 32-bit counters are used only if the link is too slow to wrap them twice.
    """

    name = "byte_counter"

    def __init__(self, interval_seconds: float, longest_gap_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._longest_gap_seconds = longest_gap_seconds
        self._fields = FieldValues()
        self._last: tuple[float, list[int]] | None = None
        self._is_wide = False
        self._link_bytes_per_second: float | None = None

    def read(self, ask: Ask, now: float) -> tuple[float, float] | None:
        """Return the transmit and receive rates since the last reading, if they are certain."""
        values = self._fields.read(ask, now, FIELDS)
        last = self._last
        self._last = None
        if len(values) < len(FIELDS):
            return None
        counts = [int(values[field]) for field in FIELDS]
        self._last = (now, counts)
        self._is_wide = self._is_wide or max(counts) >= WRAPS_AT
        self._link_bytes_per_second = self._link_bytes_per_second or _link_bytes_per_second(ask)
        if last is None or not self.may_tell(ask) or not self._is_safe(now - last[0]):
            return None
        transmit, receive = (
            self._rate(new, old, now - last[0]) for new, old in zip(counts, last[1], strict=True)
        )
        return None if transmit is None or receive is None else (transmit, receive)

    def may_tell(self, ask: Ask) -> bool:
        """Whether to keep waiting for the next reading."""
        return self._last is not None and self._is_safe(PATIENCE * self._interval_seconds)

    def _is_safe(self, gap_seconds: float) -> bool:
        """Whether the counters wrap at most once in that time."""
        if self._is_wide:
            return gap_seconds <= self._longest_gap_seconds
        link = self._link_bytes_per_second
        return link is not None and gap_seconds * link < WRAPS_AT

    def _rate(self, new: int, old: int, gap_seconds: float) -> float | None:
        grown = new - old if self._is_wide else (new - old) % WRAPS_AT
        rate = grown / gap_seconds
        # Negative, or more than the link can carry: the counter was reset.
        link = self._link_bytes_per_second
        return rate if grown >= 0 and (link is None or rate <= PATIENCE * link) else None


def _link_bytes_per_second(ask: Ask) -> float | None:
    return pcie_bytes_per_second(
        ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration), ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth)
    )
