"""XID errors from the kernel's log, /dev/kmsg, including those that NVML has no event for."""

import os
import re
import stat
from typing import Final

from exporter.nvml.worker.xids import XidCounts

# The driver's message, for example "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen off
# the bus."; for a MIG instance "(PCI:0000:1b:00 GPU-I:05)".
XID: Final = re.compile(
    # A process may be called like a message of the driver, and the kernel tells of its end.
    r"(?P<priority>\d+),[^;]*;(?:nvidia [\da-f:.]+: )?NVRM: Xid \((?:PCI:)?"
    r"(?P<domain>[0-9a-f]+):(?P<bus>[0-9a-f]+):(?P<device>[0-9a-f]+)[^)]*\): (?P<kind>\d+)",
    re.IGNORECASE,
)
# The device number of kmsg (Linux, admin-guide/devices): containers have /dev/null in its place.
DEVICE: Final = os.makedev(1, 11)
# The kernel refuses a buffer smaller than its longest record.
RECORD_BYTES: Final = 8192
# Per read(): a flood of messages must not delay the sample.
RECORDS: Final = 4096

# Domain, bus and device.
BusId = tuple[int, int, int]


class Kmsg:
    """Counts the XID errors that the kernel logs from now on. One thread uses it."""

    def __init__(self, path: str) -> None:
        """Open the log at its end; raise OSError if it is unreadable, or not the log."""
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._half_line = b""
        self._counts: dict[BusId, XidCounts] = {}
        kind = os.fstat(self._file)
        if stat.S_ISCHR(kind.st_mode) and kind.st_rdev != DEVICE:
            os.close(self._file)
            raise OSError(f"{path} is not the kernel's log")
        if not stat.S_ISFIFO(kind.st_mode):
            os.lseek(self._file, 0, os.SEEK_END)

    def read(self) -> None:
        """Read what was written since the last call, without blocking."""
        for _ in range(RECORDS):
            try:
                chunk = os.read(self._file, RECORD_BYTES)
            except BrokenPipeError:
                continue  # Overwritten: the next read returns the oldest message left.
            except BlockingIOError:
                return
            if not chunk:
                return
            *lines, self._half_line = (self._half_line + chunk).split(b"\n")
            for line in lines:
                self._take(line.decode(errors="replace"))

    def counts(self, pci_bus_id: str) -> XidCounts:
        """Return the counts of the GPU at *pci_bus_id*, as NVML writes it."""
        domain, bus, device = pci_bus_id.partition(".")[0].split(":")
        return self._of((int(domain, 16), int(bus, 16), int(device, 16)))

    def _take(self, line: str) -> None:
        found = XID.match(line)
        # The kernel's own messages have facility 0, those of programs another.
        if found is None or int(found["priority"]) >> 3 != 0:
            return
        place = (int(found["domain"], 16), int(found["bus"], 16), int(found["device"], 16))
        self._of(place).add(int(found["kind"]))

    def _of(self, place: BusId) -> XidCounts:
        return self._counts.setdefault(place, XidCounts())


def open_kmsg(path: str) -> Kmsg | None:
    """Return the log, None if it cannot be read."""
    try:
        return Kmsg(path)
    except OSError:
        return None
