"""The processes that NVML lists on the node's GPUs, looked up in /proc every few seconds."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from exporter.errors import Failures
from exporter.nvml.sample import NvmlSource
from exporter.processes.background import BackgroundWatch
from exporter.processes.process import Proc, Process

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 5.0
STALE_SECONDS: Final = 30.0
# A process may end between NVML's list and our look; this many looks in a row are no coincidence.
LOOKS_BEFORE_WARNING: Final = 3
NOT_THERE: Final = (
    "none of the processes that NVML lists on the GPUs is in /proc, so ranks without the probe "
    "cannot be found: give the exporter the node's process namespace (hostPID: true, --pid=host) "
    "and a /proc that is not mounted with hidepid"
)
NOT_READABLE: Final = (
    "the environment of no process on the GPUs can be read, so ranks without the probe cannot be "
    "found: run the exporter as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
)


class ProcessWatch(BackgroundWatch):
    """Looks up the listed processes, in a thread of its own between start() and stop().

    Only processes that NVML lists are read, so an idle node costs nothing. When all of a batch
    job or pod have ended, the last one is kept for as long as any process is left in that.
    """

    def __init__(
        self,
        nvml: NvmlSource,
        proc: Proc,
        clock: Callable[[], float] = time.monotonic,
        failures: Failures | None = None,
    ) -> None:
        hangs = "reading a process on a GPU in /proc hangs"
        super().__init__(
            "rankskew-process-watch", INTERVAL_SECONDS, STALE_SECONDS, hangs, clock, failures
        )
        self._nvml = nvml
        self._proc = proc
        # Replaced as a whole, so that a reader in another thread never sees a partial result.
        self._processes: Mapping[int, Process] = {}
        self._looks_with: dict[str, int] = {NOT_THERE: 0, NOT_READABLE: 0}

    def processes(self) -> Mapping[int, Process]:
        """Return the processes by id, as of the last look. Raises WatchHangs if that is too old."""
        self._raise_if_it_hangs()
        return self._processes

    def look(self) -> None:
        """Look now, and warn once if the node hides its processes from the exporter."""
        listed, known = self._listed(), self._processes
        online = self._proc.online_cpus() if listed else frozenset()
        seen = {
            pid: process
            for pid in listed
            if (process := self._proc.process(pid, known.get(pid), online)) is not None
        }
        here = {each.cgroup.allocation for each in seen.values()}
        gone = {known[pid].cgroup.allocation: known[pid] for pid in known.keys() - seen.keys()}
        going = self._proc.allocations() - here if any(gone) else ()
        kept = {each.pid: each for allocation, each in gone.items() if allocation in going}
        self._warn(NOT_THERE, bool(listed) and not seen and not kept)
        self._warn(NOT_READABLE, bool(seen) and all(p.environment is None for p in seen.values()))
        self._processes = kept | seen
        self._looked_seconds = self._clock()

    def _listed(self) -> list[int]:
        sample = self._nvml.latest()
        if sample is None:  # No answer just now: the processes of the last look may still run.
            return sorted(self._processes)
        return sorted({process.pid for gpu in sample.gpus for process in gpu.processes or ()})

    def _warn(self, what: str, is_so: bool) -> None:
        if self._looks_with[what] >= LOOKS_BEFORE_WARNING:
            return  # Logged already.
        self._looks_with[what] = self._looks_with[what] + 1 if is_so else 0
        if self._looks_with[what] == LOOKS_BEFORE_WARNING:
            logger.warning("%s", what)
