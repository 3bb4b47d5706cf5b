"""The reasons for which a GPU's clocks are throttled, as the `reason` label names them.

In its own module because the exporter's process must not import pynvml; only the worker does.
"""

from typing import Final

# nvml.h, nvmlClocksEventReason*: every value of the `reason` label, in the bits' order.
# Left out are gpu_idle (0x1) and display_clock_setting (0x100), which do not slow down training.
REASON_BITS: Final = {
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
