"""Which card a GPU is, where it sits, which CPUs are near, and how far the other GPUs are."""

from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pynvml

from exporter.nvml.calls import PROCESS_OBSOLETE, CallFailed, Calls
from exporter.nvml.readings.query import Ask
from rank_probe.process.cpus import cpu_list
from rank_probe.process.small_files import text_of

# nvml.h, nvmlGpuTopologyLevel_t: the common ancestor of two GPUs, nearest first.
LEVELS: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "internal",
    pynvml.NVML_TOPOLOGY_SINGLE: "single",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "multiple",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "hostbridge",
    pynvml.NVML_TOPOLOGY_NODE: "node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "system",
}
# The levels do not change, but a GPU that was lost at first may have come back.
TOPOLOGY_SECONDS: Final = 300.0
# NVML fills arrays of 64-bit words: room for 2048 CPUs, and for 1024 NUMA nodes.
CPU_WORDS: Final = 32
NODE_WORDS: Final = 16


class Placement:
    """Reads where one GPU sits; once each time the GPU is opened.

    The kernel's files come first: NVML's own NUMA node id is that of a GPU's memory, if that is a
    NUMA node (GH200), and not that of the CPUs beside the GPU.
    """

    def __init__(self, sysfs: Path) -> None:
        self._devices = sysfs / "bus" / "pci" / "devices"
        self._opening: Ask | None = None
        self._fields: dict[str, Any] = {}

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return serial number, number of the device file, NUMA node and CPUs, as far as known."""
        if ask is not self._opening:
            device = self._device(ask)
            fields = {
                "serial": ask(pynvml.nvmlDeviceGetSerial),
                "minor_number": ask(pynvml.nvmlDeviceGetMinorNumber),
                "numa_node": _numa_node(ask, device),
                "cpu_affinity": _cpu_affinity(ask, device),
            }
            self._fields = {name: value for name, value in fields.items() if value is not None}
            self._opening = ask
        return self._fields

    def _device(self, ask: Ask) -> Path | None:
        pci = ask(pynvml.nvmlDeviceGetPciInfo)
        return None if pci is None else self._devices / kernel_bus_id(pci.busId)


class Topology:
    """Reads the common-ancestor level of each pair of GPUs.

    It needs a handle of every GPU, and never gets that of a GPU that hangs. So it has its own
    thread, and the GPUs' other readings do not wait for it.
    """

    def __init__(self, gpus: int, calls: Calls) -> None:
        self._gpus = range(gpus)
        self._calls = calls
        self._due = 0.0
        self._levels: dict[int, dict[str, str]] = {}

    def read(self, now: float) -> dict[int, dict[str, str]]:
        """Return the levels by one GPU's index, then the other's; read again every 5 minutes.

        Raise CallFailed only if this process cannot continue.
        """
        if now >= self._due:
            self._levels = self._read()
            self._due = now + TOPOLOGY_SECONDS
        return self._levels

    def _read(self) -> dict[int, dict[str, str]]:
        opened = {gpu: self._ask(gpu, pynvml.nvmlDeviceGetHandleByIndex, gpu) for gpu in self._gpus}
        handles = {gpu: handle for gpu, handle in opened.items() if handle is not None}
        levels: dict[int, dict[str, str]] = {gpu: {} for gpu in handles}
        for one, other in combinations(handles, 2):
            number = self._ask(
                one, pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[one], handles[other]
            )
            if number in LEVELS:
                levels[one][str(other)] = levels[other][str(one)] = LEVELS[number]
        return levels

    def _ask(self, gpu: int, function: Any, *args: Any) -> Any:
        try:
            return self._calls(gpu, function, *args)
        except CallFailed as failure:
            if failure.code in PROCESS_OBSOLETE:
                raise
            return None


def kernel_bus_id(bus_id: str) -> str:
    """Return NVML's *bus_id* as the kernel writes it: a four-digit domain, lower case."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _numa_node(ask: Ask, device: Path | None) -> int | None:
    """Return the node; None if the kernel says -1, or NVML names none or several."""
    text = _content(device, "numa_node")
    if text is not None:
        return int(text) if int(text) >= 0 else None
    nodes = _bits(
        ask(pynvml.nvmlDeviceGetMemoryAffinity, NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    )
    return nodes[0] if len(nodes) == 1 else None


def _cpu_affinity(ask: Ask, device: Path | None) -> tuple[int, ...] | None:
    text = _content(device, "local_cpulist")
    cpus = cpu_list(text) if text is not None else ()
    return cpus or _bits(ask(pynvml.nvmlDeviceGetCpuAffinity, CPU_WORDS)) or None


def _bits(words: Any | None) -> tuple[int, ...]:
    """Return the numbers of the bits that are set in an array of 64-bit words."""
    return tuple(
        64 * place + bit
        for place, word in enumerate(words or ())
        for bit in range(64)
        if word >> bit & 1
    )


def _content(device: Path | None, name: str) -> str | None:
    # A container may hide it.
    return None if device is None else text_of(device / name)
