"""Why the GPUs of a node cannot be read at all: then no other fault of theirs is known."""

from exporter.gpu_faults.fault import NVML, Fault
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import NoGpuReason, NvmlSource
from exporter.past import Past

WINDOW_SECONDS = 300.0
STUCK_SECONDS = 60.0
# A node that never had a GPU may have no driver.
WITHOUT_DRIVER = (NoGpuReason.NO_LIBRARY, NoGpuReason.DRIVER_NOT_LOADED)


class NvmlHealth:
    """Whether the process that reads the GPUs works; it is replaced within seconds if it fails."""

    def __init__(self, nvml: NvmlSource, expected: ExpectedGpus) -> None:
        self._nvml = nvml
        self._expected = expected
        self._down = Past(WINDOW_SECONDS)
        self._down_seconds = 0.0
        self._seen_seconds: float | None = None

    def see(self, now: float) -> None:
        """Add up for how long the process has been down."""
        if self._seen_seconds is not None and not self._nvml.worker_up:
            self._down_seconds += now - self._seen_seconds
        self._seen_seconds = now
        self._down.see("down", self._down_seconds, now)

    def fault(self) -> Fault | None:
        """Return why the GPUs cannot be read, None if they can be or are not meant to be."""
        if self._nvml.released:
            return None
        stuck = self._nvml.stuck_call
        if stuck is not None and stuck.gpu is None and stuck.seconds > STUCK_SECONDS:
            return Fault(NVML, "call_stuck")
        if self._down.increase("down", self._down_seconds) > WINDOW_SECONDS / 2:
            return Fault(NVML, "worker_down")
        sample = self._nvml.latest()
        reason = None if sample is None else sample.error_reason
        if reason in (None, NoGpuReason.NO_GPU):
            return None
        if reason in WITHOUT_DRIVER and not self._expected.number:
            return None
        return Fault(NVML, str(reason))
