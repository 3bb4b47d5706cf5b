"""A GPU's PCIe link: its traffic, from the best available source, and its speed."""

from typing import Any, Final, Protocol

import pynvml

from exporter.nvml.readings.gpm import PCIE, Gpm
from exporter.nvml.readings.pcie_bytes import PcieByteCounters
from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.window import Window
from exporter.nvml.timing import Timing

# Transmit and receive in bytes a second, as the GPU sees it.
Rates = tuple[float, float]

BYTES_PER_MEBIBYTE: Final = 2**20
# nvml.h says KB/s for nvmlDeviceGetPcieThroughput, but KiB for other readings; if it means 1024
# here too, these rates are 2.3 % low.
BYTES_PER_KILOBYTE: Final = 1000
# Performance states from here on save power, which may also slow down the link; 32 is unknown.
SAVING_STATES: Final = range(3, 16)
# How often the generation of a busy GPU's link is read.
LINK_SECONDS: Final = 5.0


class Source(Protocol):
    """One source of the link's traffic; *name* is a value of the label `pcie_source`."""

    @property
    def name(self) -> str: ...

    def read(self, ask: Ask, now: float) -> Rates | None:
        """Return the means over the window, None if there are none now."""
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
            _Reader(Averaged(counters, window)),
            _Reader(Averaged(SampledRates(), window)),
        )


class _Reader:
    """A source, and whether it has ever shown traffic."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.has_moved = False

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        rates = self.source.read(ask, now)
        if rates is None:
            return {}
        self.has_moved = self.has_moved or any(rates)
        return {
            "pcie_transmit_bytes_per_second": rates[0],
            "pcie_receive_bytes_per_second": rates[1],
            "pcie_source": self.source.name,
        }


class Averaged:
    """The means over the window, for a source that gives a new value each time."""

    def __init__(self, source: Source, window_seconds: float) -> None:
        self.name = source.name
        self._source = source
        self._windows = (Window(window_seconds), Window(window_seconds))

    def read(self, ask: Ask, now: float) -> Rates | None:
        rates = self._source.read(ask, now)
        if rates is None:
            return None
        for window, rate in zip(self._windows, rates, strict=True):
            window.add(now, rate)
        transmit, receive = (window.mean() for window in self._windows)
        assert transmit is not None  # The window holds at least the current one.
        assert receive is not None
        return transmit, receive

    def may_tell(self, ask: Ask) -> bool:
        return self._source.may_tell(ask)


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


class PcieLink:
    """Returns the generation of the link while the GPU works, and not while it is idle.

    Power management slows down the link of an idle GPU, which is not a fault.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._due = 0.0
        # The generation when the GPU was last seen working, and when that was.
        self._ask: Ask | None = None
        self._busy: tuple[float, int] | None = None

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the generation, None if the GPU did not work during the window."""
        if ask is not self._ask:
            self._ask, self._busy, self._due = ask, None, now
        if now >= self._due and _is_busy(ask):  # While idle, check each time: work may be short.
            self._look(ask, now)
        if self._busy is not None and now - self._busy[0] > self._window_seconds:
            self._busy = None
        return {"pcie_link_generation": self._busy and self._busy[1]}

    def _look(self, ask: Ask, now: float) -> None:
        generation = ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration)
        if generation is None:
            self._busy = None
        else:
            self._busy = (now, generation)
            self._due = now + min(LINK_SECONDS, self._window_seconds / 3)


def _is_busy(ask: Ask) -> bool:
    """Whether the GPU works, in a performance state that does not save power.

    With MIG there is no utilization; the throttle reasons then show whether the GPU is idle.
    """
    if ask(pynvml.nvmlDeviceGetPerformanceState) in SAVING_STATES:
        return False
    rates = ask(pynvml.nvmlDeviceGetUtilizationRates)
    if rates is not None:
        return bool(rates.gpu > 0)
    reasons = ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
    return reasons is not None and not reasons & pynvml.nvmlClocksEventReasonGpuIdle
