"""The list of readings that take several calls, or need the previous reading."""

from pathlib import Path
from typing import Any, Protocol

from exporter.nvml.readings.gpm import Gpm
from exporter.nvml.readings.mig import MigDevices
from exporter.nvml.readings.nvlink import NvLink
from exporter.nvml.readings.pcie_link import AerErrors, PcieLink
from exporter.nvml.readings.pcie_traffic import PcieThroughput
from exporter.nvml.readings.placement import Placement
from exporter.nvml.readings.processes import Processes
from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.throttle import Throttle
from exporter.nvml.readings.utilization import Utilization
from exporter.nvml.timing import Timing


class SubjectReader(Protocol):
    """One subject of one GPU. There is one instance per GPU, which survives losses of the GPU."""

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return fields of GpuSample as of monotonic time *now*; unknown ones are left out.

        Raises CallFailed when the GPU is lost or the process cannot continue.
        """
        ...


def quick(timing: Timing) -> tuple[SubjectReader, ...]:
    """Return the parts that answer within milliseconds; one thread per GPU reads them all."""
    return (
        Throttle(2 * timing.interval_seconds),
        Utilization(timing.window_seconds),
        PcieLink(timing.window_seconds),
        Placement(Path(timing.path_sysfs)),
        AerErrors(Path(timing.path_sysfs)),
        Processes(),
    )


def slow(timing: Timing) -> tuple[SubjectReader, ...]:
    """Return the parts that take longer; another thread of the GPU reads them."""
    gpm = Gpm(timing.window_seconds)
    mig = MigDevices(timing.window_seconds)
    return (gpm, PcieThroughput(timing, gpm), NvLink(), mig)  # PCIe uses GPM's reading.
