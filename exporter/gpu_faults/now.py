"""Faults that one sample of a node's GPUs shows, and why they cannot be read at all."""

from collections.abc import Iterator
from typing import Final

from exporter.gpu_faults.fault import (
    FABRIC,
    LOST,
    MEMORY,
    MISSING,
    NVML,
    PCIE_LINK,
    RECOVERY,
    ROW_REMAP_PENDING,
    Fault,
)
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import GpuSample, NodeSample, NoGpuReason, NvmlSource
from exporter.past import Past

# What the driver advises, by NVML's number (field 230).
RECOVERY_ACTIONS: Final = {
    1: "reset",
    2: "reboot",
    3: "drain",
    4: "drain and reset",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
WINDOW_SECONDS = 300.0
STUCK_SECONDS = 60.0
# A node that never had a GPU may have no driver.
WITHOUT_DRIVER = (NoGpuReason.NO_LIBRARY, NoGpuReason.DRIVER_NOT_LOADED)


def ups(sample: NodeSample | None, expected: ExpectedGpus) -> Iterator[tuple[str, str, bool]]:
    """Yield the index and UUID of each GPU that is listed or expected, and whether it answers."""
    if sample is None or sample.gpus_visible is None:
        return
    missing = iter(expected.missing(sample.gpus))
    for gpu in sample.gpus:
        # Lost before its UUID was read: most likely it is the missing one.
        yield str(gpu.index), gpu.uuid or next(missing, ""), gpu.up
    for uuid in missing:
        yield "", uuid, False


def lost(
    sample: NodeSample | None, expected: ExpectedGpus
) -> Iterator[tuple[tuple[str, str], Fault]]:
    """Yield each GPU that does not answer, or else how many are missing that were never seen.

    Yields nothing while no GPU at all can be read.
    """
    if sample is None or sample.error_reason not in (None, NoGpuReason.NO_GPU):
        return
    gone = [(index, uuid) for index, uuid, up in ups(sample, expected) if not up]
    for gpu in gone:
        yield gpu, Fault(LOST)
    there, wanted = sample.gpus_visible, expected.number
    if not gone and there is not None and wanted is not None and there < wanted:
        yield ("", ""), Fault(MISSING, f"{there} of {wanted}")


def standing(gpu: GpuSample) -> Iterator[Fault]:
    """Yield the faults that the readings of *gpu* show by themselves."""
    if gpu.recovery_action:
        action = gpu.recovery_action
        yield Fault(RECOVERY, RECOVERY_ACTIONS.get(action, str(action)))
    if gpu.row_remap_failed:
        yield Fault(MEMORY, "row_remap_failed")
    if gpu.row_remap_pending:
        yield Fault(ROW_REMAP_PENDING)
    if link := _link(gpu):
        yield Fault(PCIE_LINK, link)
    if gpu.fabric_trouble and gpu.mig_devices is None:
        yield Fault(FABRIC, gpu.fabric_trouble)


def _link(gpu: GpuSample) -> str:
    """Return what the PCIe link lacks, "" if nothing."""
    width, widest = gpu.pcie_link_width, gpu.pcie_link_width_max
    if width is not None and widest is not None and width < widest:
        return f"x{width} of x{widest}"
    generation, best = gpu.pcie_link_generation, gpu.pcie_link_generation_max
    if generation is not None and best is not None and generation < best:
        return f"generation {generation} of {best}"
    return ""


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
        is_down = not (self._nvml.worker_up or self._nvml.released)
        if self._seen_seconds is not None and is_down:
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
