"""Which GPUs the kernel module drives, seen without NVML: that counts only when it is opened."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

# The module makes a directory here when it takes a GPU on, and removes it when it lets go of it
# (open-gpu-kernel-modules: nv_procfs_add_gpu in probe, nv_procfs_remove_gpu in remove).
DRIVER_GPUS: Final = Path("/proc/driver/nvidia/gpus")
LOOK_SECONDS: Final = 10.0


class BoundGpus:
    """Compares the GPUs that are there now with those at its own start, by PCI bus id."""

    def __init__(
        self, directory: Path = DRIVER_GPUS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._first = self._last = self._list()
        self._look_at = clock() + LOOK_SECONDS

    def have_changed(self) -> bool:
        """Whether two looks in a row, 10 s apart, saw the same other GPUs than the first."""
        if self._clock() < self._look_at:
            return False
        self._look_at = self._clock() + LOOK_SECONDS
        before, self._last = self._last, self._list()
        return self._first != self._last == before

    def _list(self) -> frozenset[str]:
        try:
            return frozenset(entry.name for entry in self._directory.iterdir())
        except OSError:
            return frozenset()  # No driver, or a container that does not see it: no change then.
