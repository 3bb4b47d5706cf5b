"""Errors of a GPU's PCIe link as the kernel counts them (AER), from the files of both its ends."""

import re
from pathlib import Path
from typing import Any, Final

import pynvml

from exporter.nvml.readings.placement import kernel_bus_id
from exporter.nvml.readings.query import Ask

EVERY_SECONDS: Final = 30.0
# Each file ends with the sum of its errors (Linux: ABI/testing/sysfs-bus-pci-devices-aer).
FILES: Final = ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")


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
            self._due = now + EVERY_SECONDS
        return self._fields

    def _both_ends(self, ask: Ask) -> tuple[Path, ...]:
        pci = ask(pynvml.nvmlDeviceGetPciInfo)
        if pci is None:
            return ()
        device = (self._devices / kernel_bus_id(pci.busId)).resolve()
        return (device, device.parent)  # A device is in the folder of the bridge above it.


def errors_of(device: Path) -> int | None:
    """Return all errors that a PCI device has seen; None unless all its files can be read."""
    counts = [total(device / file) for file in FILES]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(FILES) else None


def total(file: Path) -> int | None:
    """Return the TOTAL_ERR_... line of *file*; None if there is none."""
    try:
        found = re.search(r"^TOTAL_ERR_\w+ (\d+)$", file.read_text(), re.MULTILINE)
    except OSError:
        return None  # A virtual machine may hide it.
    return None if found is None else int(found[1])
