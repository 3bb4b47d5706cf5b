"""A GPU's PCIe link: its generation while the GPU works, and its errors."""

import re
from pathlib import Path
from typing import Any, Final

import pynvml

from exporter.nvml.readings.placement import kernel_bus_id
from exporter.nvml.readings.query import Ask
from rank_probe.process.small_files import text_of

# Performance states from here on save power, which may also slow down the link; 32 is unknown.
SAVING_STATES: Final = range(3, 16)
# How often the generation of a busy GPU's link is read.
LINK_SECONDS: Final = 5.0
ERRORS_SECONDS: Final = 30.0
# Each ends with the sum of its errors (Linux: ABI/testing/sysfs-bus-pci-devices-aer).
ERROR_FILES: Final = ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")


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


class AerErrors:
    """Reads the errors that one GPU, and the port above it, have seen on the link between them.

    A damaged packet is counted by the end that receives it. Without AER there is no reading.
    """

    def __init__(self, sysfs: Path) -> None:
        self._devices = sysfs / "bus" / "pci" / "devices"
        self._opening: Ask | None = None
        self._ends: tuple[Path, ...] = ()
        self._due = 0.0
        self._fields: dict[str, Any] = {}

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the sum over both ends, at most 30 s old."""
        if ask is not self._opening:
            self._ends = self._both_ends(ask)
            self._opening, self._due = ask, now
        if now >= self._due:
            counts = [count for count in map(errors_of, self._ends) if count is not None]
            self._fields = {"pcie_errors": sum(counts)} if counts else {}
            self._due = now + ERRORS_SECONDS
        return self._fields

    def _both_ends(self, ask: Ask) -> tuple[Path, ...]:
        pci = ask(pynvml.nvmlDeviceGetPciInfo)
        if pci is None:
            return ()
        device = (self._devices / kernel_bus_id(pci.busId)).resolve()
        return (device, device.parent)  # A device is in the folder of the bridge above it.


def errors_of(device: Path) -> int | None:
    """Return all errors that a PCI device has seen; None unless all its files can be read."""
    counts = [total(device / file) for file in ERROR_FILES]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(ERROR_FILES) else None


def total(file: Path) -> int | None:
    """Return the TOTAL_ERR_... line of *file*; None if there is none."""
    # A virtual machine may hide it.
    found = re.search(r"^TOTAL_ERR_\w+ (\d+)$", text_of(file) or "", re.MULTILINE)
    return None if found is None else int(found[1])
