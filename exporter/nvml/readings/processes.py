"""Who uses a GPU: the processes that have it open, from NVML's two lists."""

from typing import Any, Final

import pynvml

from exporter.nvml.readings.query import Ask
from exporter.nvml.sample import GpuProcess

# The two lists take 0.3 ms together, and processes rarely come and go.
EVERY_SECONDS: Final = 5.0


def compute_processes(handle: object) -> list[GpuProcess]:
    """List the processes that compute on the GPU."""
    return [_process(one) for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]


def graphics_processes(handle: object) -> list[GpuProcess]:
    """List the processes that use the GPU for graphics."""
    return [_process(one) for one in pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)]


class Processes:
    """Lists the processes of one GPU.

    Process ids are those of the worker's PID namespace: in a container without the host's PID
    namespace, NVML lists only the container's processes, or none.
    """

    def __init__(self) -> None:
        self._due = 0.0
        self._fields: dict[str, Any] = {}

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return both lists merged, each process once; read again every 5 s."""
        if now >= self._due:
            self._due = now + EVERY_SECONDS
            lists = [ask(compute_processes), ask(graphics_processes)]
            known = [processes for processes in lists if processes is not None]
            self._fields = {"processes": _merged(known)} if known else {}
        return self._fields


def _process(process: Any) -> GpuProcess:
    return GpuProcess(process.pid, process.usedGpuMemory)


def _merged(lists: list[list[GpuProcess]]) -> tuple[GpuProcess, ...]:
    """Return each process once: one on both lists has the same memory on both."""
    by_pid: dict[int, GpuProcess] = {}
    for process in (process for processes in lists for process in processes):
        known = by_pid.get(process.pid)
        if known is None or known.used_bytes is None:
            by_pid[process.pid] = process
    return tuple(by_pid.values())
