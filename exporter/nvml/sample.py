"""One sample of a node's GPUs, as the worker writes it and the collectors read it.

Readings keep NVML's own units, named in the field; the collectors convert. None means "no reading".
The exporter reads this and must not import pynvml: only the worker does.
"""

import json
import zlib
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final, Protocol, Self

# nvml.h, nvmlClocksEventReason*: every value of the `reason` label, in the bits' order.
# Left out are gpu_idle (0x1) and display_clock_setting (0x100), which do not slow down training.
REASON_BITS: Final = {
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}

# The bytes per second that a lane of PCIe carries in each direction, by generation: 2.5, 5, 8, 16,
# 32 and 64 GT/s minus the line code (8b/10b, from generation 3 on 128b/130b, and 242 of 256 bytes
# of a flit in generation 6), rounded up.
PCIE_LANES: Final = {1: 250e6, 2: 500e6, 3: 985e6, 4: 1970e6, 5: 3939e6, 6: 7563e6}


def pcie_bytes_per_second(generation: int | None, lanes: int | None) -> float | None:
    """Return what a PCIe link carries in each direction, None if unknown."""
    lane = PCIE_LANES.get(generation or 0)
    return None if lane is None or not lanes else lane * lanes


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has the GPU open, by its id in NVML's own PID namespace.

    *used_bytes* is None if unknown.
    """

    pid: int
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One MIG device: a part of a GPU that programs see as a GPU of its own.

    *profile* is its size, for example 1g.10gb. Each GPU instance has its own memory and processors;
    compute instances share the processors of one. *sm_active_percent* is the GPU instance's.
    """

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    sm_active_percent: float | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The readings of one GPU; one that is not *up* has none, only its identity if known.

    *index* is NVML's, which may differ from CUDA's and from the number of the device file.
    *throttle_reasons* is NVML's bit mask; *throttle_seconds* counts since the worker started.
    """

    index: int
    up: bool
    uuid: str = ""
    name: str = ""
    pci_bus_id: str = ""
    gpu_busy_percent: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    pcie_transmit_bytes_per_second: float | None = None
    pcie_receive_bytes_per_second: float | None = None
    pcie_link_generation: int | None = None
    pcie_link_generation_max: int | None = None
    pcie_link_width: int | None = None
    pcie_link_width_max: int | None = None
    pcie_replays: int | None = None
    # All errors of its link that the kernel knows (AER), of both ends.
    pcie_errors: int | None = None
    # 0 is the fastest, 15 the slowest.
    performance_state: int | None = None
    decoder_busy_percent: float | None = None
    sm_clock_megahertz: int | None = None
    memory_clock_megahertz: int | None = None
    throttle_reasons: int | None = None
    throttle_seconds: dict[str, float] | None = None
    power_milliwatts: int | None = None
    power_limit_milliwatts: int | None = None
    energy_millijoules: int | None = None
    gpu_temperature_celsius: int | None = None
    memory_temperature_celsius: int | None = None
    # Its health. Errors and remapped rows count over the GPU's life.
    ecc_corrected_errors: int | None = None
    ecc_uncorrected_errors: int | None = None
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    row_remap_pending: int | None = None
    row_remap_failed: int | None = None
    recovery_action: int | None = None
    fabric_trouble: str | None = None
    # What is printed on the card, and where it sits.
    serial: str | None = None
    minor_number: int | None = None
    numa_node: int | None = None
    cpu_affinity: tuple[int, ...] | None = None
    # Who uses it; empty if nobody does.
    processes: tuple[GpuProcess, ...] | None = None
    # XID errors since the worker started, also of a GPU that is not up, because they explain why:
    # the total, the first kinds by number, and their source, see xids.XidSource.
    xid_events: int | None = None
    xid_errors: dict[str, int] | None = None
    xid_source: str | None = None
    # Its MIG devices, None where MIG is off.
    mig_devices: tuple[MigDevice, ...] | None = None
    # The source of the two rates of its PCIe link: "gpm", "byte_counter" or "sampled".
    pcie_source: str | None = None
    # Activity of its units, mean percent of their capacity; Hopper and later.
    sm_active_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_active_percent: float | None = None
    dram_active_percent: float | None = None
    # All its NVLinks together; None if it has none.
    nvlink_links: int | None = None
    nvlink_links_up: int | None = None
    nvlink_transmit_bytes: int | None = None
    nvlink_receive_bytes: int | None = None
    nvlink_errors: dict[str, int] | None = None
    # By number, two links at most: errors of all types on the worst, and 0 for those that are down.
    nvlink_link_errors: dict[str, int] | None = None
    nvlink_link_states: dict[str, int] | None = None
    nvlink_link_recoveries: dict[str, int] | None = None  # Of all links.


class NoGpuReason(StrEnum):
    """Why no GPU can be read: every value of the label `reason`."""

    NO_LIBRARY = "no_library"
    DRIVER_NOT_LOADED = "driver_not_loaded"
    VERSION_MISMATCH = "version_mismatch"
    NO_PERMISSION = "no_permission"
    NO_GPU = "no_gpu"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class StuckCall:
    """A driver call that takes too long; *gpu* is None for a call on the node."""

    function: str
    gpu: int | None
    seconds: float
    # The calling thread, to look up its state in /proc.
    thread_id: int

    def __str__(self) -> str:
        place = "" if self.gpu is None else f" on GPU {self.gpu}"
        return f"{self.function}{place} has not returned for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class NodeSample:
    """One sample of the node. *gpus_visible* is 0 without a driver, None until it answers."""

    timestamp_seconds: float
    gpus_visible: int | None = None
    driver_version: str | None = None
    nvml_version: str | None = None
    gpus: tuple[GpuSample, ...] = ()
    stuck_call: StuckCall | None = None
    # A NoGpuReason, and the sentence about it for the log; None and empty while GPUs are read.
    error_reason: str | None = None
    error: str = ""
    # The worker that took it: what counts from its start begins again with the next one.
    worker_pid: int = 0
    # When it was taken, by the clock that all processes of a node share and nobody sets.
    monotonic_seconds: float = 0.0

    def to_json(self) -> bytes:
        """Return one line of UTF-8 JSON, without the line end."""
        line = json.dumps((LAYOUT, self), default=_values, separators=(",", ":"), allow_nan=False)
        return line.encode()

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        """Read what to_json wrote; raise ValueError or TypeError on anything else."""
        layout, values = json.loads(line)
        if layout != LAYOUT:
            raise ValueError(f"a sample with layout {layout}, and not {LAYOUT}")
        sample = cls(*values)
        return replace(
            sample,
            gpus=tuple(_gpu(gpu) for gpu in sample.gpus),
            stuck_call=sample.stuck_call and StuckCall(*sample.stuck_call),  # type: ignore[misc]  # a list
        )


# The fields and their order: values travel over the pipe without their names, which would be most
# of the data. A sample in another version's layout is rejected.
_CLASSES: Final = (NodeSample, GpuSample, GpuProcess, MigDevice, StuckCall)
LAYOUT: Final = zlib.crc32(repr([[f.name for f in fields(one)] for one in _CLASSES]).encode())
# The fields of GpuSample whose types JSON lacks.
_AFFINITY, _PROCESSES, _DEVICES = (
    [field.name for field in fields(GpuSample)].index(name)
    for name in ("cpu_affinity", "processes", "mig_devices")
)


def _values(sample: Any) -> list[Any]:
    """Return the values of one of the classes above; astuple() copies, at four times the cost."""
    return [getattr(sample, name) for name in sample.__slots__]


def _gpu(values: Any) -> GpuSample:
    if values[_AFFINITY] is not None:
        values[_AFFINITY] = tuple(values[_AFFINITY])
    if values[_PROCESSES] is not None:
        values[_PROCESSES] = tuple(GpuProcess(*process) for process in values[_PROCESSES])
    if values[_DEVICES] is not None:
        values[_DEVICES] = tuple(MigDevice(*device) for device in values[_DEVICES])
    return GpuSample(*values)


class NvmlSource(Protocol):
    """What collectors read from: the supervisor, or a test's fixed sample. Never blocks."""

    @property
    def worker_up(self) -> bool:
        """Whether a worker is running and has reported recently."""
        ...

    @property
    def worker_restarts(self) -> int:
        """How many workers were started to replace a failed one."""
        ...

    @property
    def stuck_call(self) -> StuckCall | None:
        """The driver call that hangs, as of now, even if the worker has fallen silent."""
        ...

    @property
    def released(self) -> bool:
        """Whether the GPUs are released: no process of ours has the driver open."""
        ...

    def latest(self) -> NodeSample | None:
        """Return the newest sample, None if there is no fresh one."""
        ...
