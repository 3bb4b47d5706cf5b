"""Errors of a GPU's PCIe link as the kernel counts them (AER), from the GPU's files in sysfs."""

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
    """Reads the errors that one GPU has seen on its link; none where the kernel has no AER.

    What the other end of the link has seen is in the files of the bridge above the GPU.
    """

    def __init__(self, sysfs: Path) -> None:
        self._devices = sysfs / "bus" / "pci" / "devices"
        self._opening: Ask | None = None
        self._device: Path | None = None
        self._due = 0.0
        self._fields: dict[str, Any] = {}

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the sum of the files, at most 30 s old."""
        if ask is not self._opening:
            pci = ask(pynvml.nvmlDeviceGetPciInfo)
            self._device = None if pci is None else self._devices / kernel_bus_id(pci.busId)
            self._opening, self._due = ask, now
        if self._device is not None and now >= self._due:
            totals = [total(self._device / file) for file in FILES]
            known = [count for count in totals if count is not None]
            self._fields = {"pcie_errors": sum(known)} if len(known) == len(FILES) else {}
            self._due = now + EVERY_SECONDS
        return self._fields


def total(file: Path) -> int | None:
    """Return the TOTAL_ERR_... line of *file*; None if there is none."""
    try:
        found = re.search(r"^TOTAL_ERR_\w+ (\d+)$", file.read_text(), re.MULTILINE)
    except OSError:
        return None  # A virtual machine may hide it.
    return None if found is None else int(found[1])
