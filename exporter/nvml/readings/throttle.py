"""Why a GPU's clocks are throttled: NVML's clock event reasons, and the seconds for each."""

from collections.abc import Mapping
from typing import Any, Final

import pynvml

from exporter.nvml.readings.fields import Field, FieldValues
from exporter.nvml.readings.query import Ask
from exporter.nvml.sample import REASON_BITS

# The field values in which the driver counts nanoseconds per reason. Three reasons have numbers 251
# to 253 in the headers of CUDA 12.9 and 13.0, and 269 to 271 since 13.1; in the other header, and
# in that of 12.8, those numbers are settings of power smoothing. Both are read: a setting does not
# grow from one second to the next, so it is never taken for a time. The counter of
# PERF_POLICY_THERMAL (75) is not used: it does not say which of the two thermal reasons it covers.
COUNTER_FIELDS: Final[Mapping[str, tuple[Field, ...]]] = {
    "sw_power_cap": ((pynvml.NVML_FI_DEV_PERF_POLICY_POWER, 0),),
    "sync_boost": ((pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, 0),),
    "sw_thermal_slowdown": ((251, 0), (269, 0)),
    "hw_thermal_slowdown": ((252, 0), (270, 0)),
    "hw_power_brake_slowdown": ((253, 0), (271, 0)),
}

# A time cannot grow faster than the clock, but the drivers' counters move in steps (reportedly of
# 0.1 s), and the calls themselves take time.
STEP_SECONDS: Final = 0.5
# An H100's driver took 2.4 ms a second for field values, most of which were these. Those of reasons
# that the mask does not show are read this often: what they count in between is not lost.
EVERY_SECONDS: Final = 10.0
EVERY_REASON: Final = sum(REASON_BITS.values())


class ThrottleSeconds:
    """Adds up the seconds under each reason, from one reading to the next.

    A reason's counter is exact, whatever happened between the two readings. If the driver has no
    counter, the mask decides. It is a snapshot, so each reading stands for the time since the last
    one, but for at most *longest_gap_seconds*: what happened in a longer gap is unknown. The mask
    also decides if the counter stands still although the mask shows the reason at both ends: older
    drivers count only the time below the application clocks.
    """

    def __init__(self, longest_gap_seconds: float) -> None:
        self._longest_gap_seconds = longest_gap_seconds
        self._last: float | None = None
        self._reasons = 0
        # What each counted, and when that was.
        self._counters: dict[Field, tuple[float, float]] = {}
        self._seconds = dict.fromkeys(REASON_BITS, 0.0)

    def wanted(self, reasons: int) -> list[Field]:
        """Return the counters of those that the mask *reasons* shows, or that it showed before."""
        bits = reasons | self._reasons
        shown = (COUNTER_FIELDS[each] for each in COUNTER_FIELDS if bits & REASON_BITS[each])
        return [field for fields in shown for field in fields]

    def add(self, reasons: int, counters: Mapping[Field, float], now: float) -> None:
        """Add the mask *reasons* and the *counters*, read at monotonic time *now*."""
        gap = 0.0 if self._last is None else now - self._last
        for reason, bit in REASON_BITS.items():
            grown = self._grown_seconds(reason, counters, now)
            if grown:
                self._seconds[reason] += grown
            elif reasons & bit and (grown is None or self._reasons & bit):
                self._seconds[reason] += min(gap, self._longest_gap_seconds)
        for field in self.wanted(reasons):
            self._counters.pop(field, None)  # One without an answer: the mask has decided.
        self._counters |= {field: (count, now) for field, count in counters.items()}
        self._last, self._reasons = now, reasons

    def seconds(self) -> dict[str, float]:
        """Return the seconds so far, one entry per reason."""
        return dict(self._seconds)

    def _grown_seconds(
        self, reason: str, counters: Mapping[Field, float], now: float
    ) -> float | None:
        """Return by how much the counter grew since it was read last, None if there is none."""
        growths = [
            ((counters[field] - self._counters[field][0]) / 1e9, now - self._counters[field][1])
            for field in COUNTER_FIELDS.get(reason, ())
            if field in counters and field in self._counters
        ]
        possible = [growth for growth, gap in growths if 0.0 <= growth <= gap + STEP_SECONDS]
        return max(possible, default=None)


class Throttle:
    """Reads the reasons of one GPU and sums their seconds since the worker started."""

    def __init__(self, longest_gap_seconds: float) -> None:
        self._seconds = ThrottleSeconds(longest_gap_seconds)
        self._counters = FieldValues()
        self._due = 0.0

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the mask, read under its former name on older drivers, and the seconds."""
        reasons = ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
        if not ask.supports(pynvml.nvmlDeviceGetCurrentClocksEventReasons):
            reasons = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        if reasons is None:
            return {}
        wanted = self._seconds.wanted(reasons)
        if now >= self._due:
            self._due, wanted = now + EVERY_SECONDS, self._seconds.wanted(EVERY_REASON)
        self._seconds.add(reasons, self._counters.read(ask, now, wanted), now)
        return {"throttle_reasons": reasons, "throttle_seconds": self._seconds.seconds()}
