"""Why a GPU's clocks are held down: NVML's clock event reasons, and seconds spent under each."""

from typing import Final

# nvml.h, nvmlClocksEventReason*: every value the `reason` label can take, in the bits' order.
REASON_BITS: Final = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
}


class ThrottleSeconds:
    """Adds up the seconds under each reason from repeated readings of the mask.

    The mask is a point in time, so each reading stands for the time since the one before, but for
    no more than *longest_gap_seconds*: what happened in a longer gap is not known.
    """

    def __init__(self, longest_gap_seconds: float) -> None:
        self._longest_gap_seconds = longest_gap_seconds
        self._last: float | None = None
        self._seconds = dict.fromkeys(REASON_BITS, 0.0)

    def add(self, reasons: int, now: float) -> None:
        """Take in the mask *reasons*, read at monotonic time *now*."""
        gap = 0.0 if self._last is None else min(now - self._last, self._longest_gap_seconds)
        self._last = now
        for reason, bit in REASON_BITS.items():
            if reasons & bit:
                self._seconds[reason] += gap

    def seconds(self) -> dict[str, float]:
        """Return the seconds so far, one entry for each reason."""
        return dict(self._seconds)
