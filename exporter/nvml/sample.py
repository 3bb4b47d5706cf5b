"""One sample of a node's GPUs, as the worker writes it and the collectors read it.

Readings keep NVML's own units, named in the field; the collectors convert. None means "no reading".
"""

import json
from dataclasses import asdict, dataclass
from typing import Protocol, Self


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What one GPU answered; one that is not *up* has no reading, only its identity if known.

    *index* is NVML's, which need be neither CUDA's nor the number of the device file.
    *throttle_reasons* is NVML's bit mask; *throttle_seconds* counts since the worker started.
    """

    index: int
    up: bool
    uuid: str = ""
    name: str = ""
    pci_bus_id: str = ""
    gpu_busy_percent: int | None = None
    memory_busy_percent: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    pcie_transmit_kilobytes_per_second: int | None = None
    pcie_receive_kilobytes_per_second: int | None = None
    pcie_link_generation: int | None = None
    pcie_link_generation_max: int | None = None
    pcie_link_width: int | None = None
    pcie_link_width_max: int | None = None
    pcie_replays: int | None = None
    sm_clock_megahertz: int | None = None
    sm_clock_max_megahertz: int | None = None
    memory_clock_megahertz: int | None = None
    memory_clock_max_megahertz: int | None = None
    throttle_reasons: int | None = None
    throttle_seconds: dict[str, float] | None = None
    power_milliwatts: int | None = None
    power_limit_milliwatts: int | None = None
    energy_millijoules: int | None = None
    gpu_temperature_celsius: int | None = None
    memory_temperature_celsius: int | None = None


@dataclass(frozen=True, slots=True)
class StuckCall:
    """A driver call that has not returned in its time; *gpu* is None for a call on the node."""

    function: str
    gpu: int | None
    seconds: float
    # Of the calling thread, to look up its state in /proc.
    thread_id: int

    def __str__(self) -> str:
        place = "" if self.gpu is None else f" on GPU {self.gpu}"
        return f"{self.function}{place} has not returned for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class NodeSample:
    """One sample of the node. *gpus_visible* is 0 without driver, None while it is still asked."""

    timestamp_seconds: float
    gpus_visible: int | None = None
    driver_version: str | None = None
    nvml_version: str | None = None
    gpus: tuple[GpuSample, ...] = ()
    stuck_call: StuckCall | None = None

    def to_json(self) -> bytes:
        """Return one line of UTF-8 JSON, without the line end."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        """Read what to_json wrote; raise ValueError, TypeError or KeyError on anything else."""
        fields = json.loads(line)
        fields["gpus"] = tuple(GpuSample(**gpu) for gpu in fields["gpus"])
        if fields["stuck_call"] is not None:
            fields["stuck_call"] = StuckCall(**fields["stuck_call"])
        return cls(**fields)


class NvmlSource(Protocol):
    """What collectors read from: the supervisor, or a test's fixed sample. Never blocks."""

    @property
    def worker_up(self) -> bool:
        """Whether a worker is running and was heard lately."""
        ...

    @property
    def worker_restarts(self) -> int:
        """How many workers were started to replace another one."""
        ...

    def latest(self) -> NodeSample | None:
        """Return the newest sample, None when there is none that is fresh."""
        ...
