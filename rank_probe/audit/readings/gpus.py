"""The node's GPUs from NVML, through pynvml where it is installed."""

import re
from collections.abc import Callable
from typing import Any, Final

from rank_probe.audit.readings.facts import GpuFacts
from rank_probe.audit.readings.files import NodeMounts
from rank_probe.process.cpus import MOST_CPUS
from rank_probe.process.small_files import names_in

NO_PYNVML: Final = "pynvml is not installed (pip install nvidia-ml-py)"
WORD_BITS: Final = 64


def device_files(mounts: NodeMounts) -> int:
    """Return how many GPUs this process could open: /dev/nvidia0 and so on."""
    return sum(re.fullmatch("nvidia[0-9]+", name) is not None for name in names_in(mounts.devices))


def read() -> tuple[tuple[GpuFacts, ...], str]:
    """Return the GPUs; without them, why NVML has none. May take long: it calls the driver."""
    try:
        import pynvml
    except ImportError:
        return (), NO_PYNVML
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), f"NVML does not start: {error}"
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        uuids = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        return tuple(
            _gpu(pynvml, index, handle, dict(zip(uuids, handles, strict=True)))
            for index, handle in enumerate(handles)
        ), ("" if handles else "NVML shows no GPU")
    except pynvml.NVMLError as error:
        return (), f"NVML does not answer: {error}"
    finally:
        _tried(pynvml, pynvml.nvmlShutdown)


def _gpu(pynvml: Any, index: int, handle: Any, everybody: dict[str, Any]) -> GpuFacts:
    uuid = list(everybody)[index]
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    paths = {
        other: _tried(pynvml, pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, its)
        for other, its in everybody.items()
        if other != uuid
    }
    words = _tried(pynvml, pynvml.nvmlDeviceGetCpuAffinity, handle, MOST_CPUS // WORD_BITS)
    return GpuFacts(
        index=index,
        uuid=uuid,
        bus_id=_text(pci.busId),
        model=_text(pynvml.nvmlDeviceGetName(handle)),
        cpus=_cpus(words or []),
        paths={other: level for other, level in paths.items() if level is not None},
        nvlinks=_nvlinks(pynvml, handle),
    )


def _nvlinks(pynvml: Any, handle: Any) -> int | None:
    """Return how many links are up; None if no link can be read."""
    states = [
        _tried(pynvml, pynvml.nvmlDeviceGetNvLinkState, handle, link)
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
    ]
    known = [state for state in states if state is not None]
    return sum(known) if known else None


def _cpus(words: list[int]) -> tuple[int, ...]:
    return tuple(
        word * WORD_BITS + bit
        for word, bits in enumerate(words)
        for bit in range(WORD_BITS)
        if bits >> bit & 1
    )


def _tried(pynvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what *call* does; None for what this GPU or driver does not have."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
