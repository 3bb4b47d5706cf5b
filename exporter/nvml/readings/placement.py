"""Which card a GPU is, where it sits, and which CPUs are near."""

from pathlib import Path
from typing import Any, Final

import pynvml

from exporter.nvml.readings.query import Ask
from rank_probe.process.small_files import cpu_list, text_of

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
