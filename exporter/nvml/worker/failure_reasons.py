"""Reasons why no GPU can be read on this node: a closed set, each with advice."""

from dataclasses import dataclass
from typing import Final

import pynvml

from exporter.nvml.calls import CallFailed
from exporter.nvml.sample import NoGpuReason

# By nvmlReturn_t of nvmlInit (nvml.h).
REASONS: Final = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: NoGpuReason.NO_LIBRARY,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: NoGpuReason.DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: NoGpuReason.VERSION_MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION: NoGpuReason.NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND: NoGpuReason.NO_GPU,
}
ADVICE: Final = {
    NoGpuReason.NO_LIBRARY: "normal without an NVIDIA GPU; else install the driver, "
    "or let this container see it (NVIDIA_DRIVER_CAPABILITIES=utility)",
    NoGpuReason.DRIVER_NOT_LOADED: "load the driver's kernel module (modprobe nvidia)",
    NoGpuReason.VERSION_MISMATCH: "the driver was upgraded or downgraded: "
    "reload its kernel modules, or reboot",
    NoGpuReason.NO_PERMISSION: "let the exporter's user open /dev/nvidia*",
    NoGpuReason.NO_GPU: "check lspci and the kernel's log, "
    "or which devices this container can access",
    NoGpuReason.OTHER: "see the kernel's log (dmesg | grep NVRM); "
    "in a container that lost its devices, restart the container",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason, with NVML's own *words*."""

    reason: NoGpuReason
    words: str

    def __str__(self) -> str:
        return f"no GPU can be read: {self.words}; {ADVICE[self.reason]}"


NO_GPU_LISTED: Final = Problem(NoGpuReason.NO_GPU, "the driver lists none")


def problem_of(failure: CallFailed) -> Problem:
    """Return what *failure* to open NVML means."""
    return Problem(REASONS.get(failure.code, NoGpuReason.OTHER), str(failure))
