"""Which GPUs the kernel module drives, read without NVML, which counts only when it is opened."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

# The module creates a directory here when it binds a GPU, and removes it when it unbinds it
# (open-gpu-kernel-modules: nv_procfs_add_gpu in probe, nv_procfs_remove_gpu in remove).
DRIVER_GPUS: Final = Path("/proc/driver/nvidia/gpus")
LOOK_SECONDS: Final = 10.0


class BoundGpus:
    """Compares the current GPUs with those at its own start, by PCI bus id."""

    def __init__(
        self, directory: Path = DRIVER_GPUS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._first = self._last = self._list()
        self._look_at = clock() + LOOK_SECONDS

    def have_changed(self) -> bool:
        """Whether two checks in a row, 10 s apart, saw the same GPUs, other than at the start."""
        if self._clock() < self._look_at:
            return False
        self._look_at = self._clock() + LOOK_SECONDS
        before, self._last = self._last, self._list()
        return self._first != self._last == before

    def _list(self) -> frozenset[str]:
        try:
            return frozenset(entry.name for entry in self._directory.iterdir())
        except OSError:
            return frozenset()  # No driver, or a container that cannot see it: never a change.
