"""The traffic of a GPU's PCIe link from its byte counters, only where they are reliable."""

from typing import Final

import pynvml

from exporter.nvml.readings.fields import FieldValues
from exporter.nvml.readings.query import Ask

FIELDS: Final = (
    (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0),
    (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
)
# nvml.h says "Value can be wrapped" but not where; GPUs are known to count in 32 bits, whatever
# type the driver returns. Only a counter that has exceeded 32 bits is known not to wrap there.
WRAPS_AT: Final = 2**32
# The most bytes per second and direction that a lane carries: 2.5, 5, 8, 16, 32 and 64 GT/s minus
# the line code (8b/10b, from generation 3 on 128b/130b, rounded up).
LANE_BYTES_PER_SECOND: Final = {1: 250e6, 2: 500e6, 3: 985e6, 4: 1970e6, 5: 3940e6, 6: 8000e6}
# How many times the interval a reading may take without risking a second wrap.
PATIENCE: Final = 1.5


class PcieByteCounters:
    """Bytes per second between two readings of the counters.

    A 32-bit counter that wraps once in between is read correctly; one that wraps twice cannot be.
    So 32-bit counters are used only if the link is too slow to wrap them twice.
    """

    name = "byte_counter"

    def __init__(self, interval_seconds: float, longest_gap_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._longest_gap_seconds = longest_gap_seconds
        self._fields = FieldValues(FIELDS)
        self._last: tuple[float, list[int]] | None = None
        self._is_wide = False
        self._link_bytes_per_second: float | None = None

    def read(self, ask: Ask, now: float) -> tuple[float, float] | None:
        """Return the transmit and receive rates since the last reading, if they are certain."""
        values = self._fields.read(ask, now)
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
    generation = ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration)
    lanes = ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth)
    if generation is None or lanes is None or generation not in LANE_BYTES_PER_SECOND:
        return None
    return float(lanes * LANE_BYTES_PER_SECOND[generation])
