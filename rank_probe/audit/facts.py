"""What one rank knows of itself and of its node, as it posts it to rank 0."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rank_probe.process import small_files

# A node with 16 GPUs needs 4 KiB; no audit posts data that unpacks to more than this.
LARGEST_BYTES: Final = 2**20
# The prefix of a variable's value if only a digest of it is posted.
HIDDEN: Final = "hidden "


@dataclass(frozen=True, slots=True)
class NodeMounts:
    """Where the node's proc file system and sysfs are mounted, and its devices."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    devices: Path = Path("/dev")


def text_of(path: Path) -> str:
    """Return the file's text, stripped; empty if it cannot be read."""
    return small_files.text_of(path) or ""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU, as NVML shows it; *cpus* are those next to it, *fabric* is what its NVLinks lack."""

    index: int
    uuid: str
    model: str
    cpus: tuple[int, ...] = ()
    fabric: str = ""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.uuid})"


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface that the job's sockets use; *chosen_by* says why."""

    name: str
    mtu: int
    is_down: bool
    chosen_by: str


@dataclass(frozen=True, slots=True)
class Port:
    """An InfiniBand or RoCE port; *rate* is in Gb/s."""

    device: str
    number: str
    layer: str
    is_active: bool
    rate: float


@dataclass(frozen=True, slots=True)
class Facts:
    """One process. None, or an empty value, is what could not be read.

    *node* is its name for people, *machine* tells machines apart, and *container* those that share
    one control group. *compared* are the variables that should be the same on all ranks, with
    secret values hashed; *settings* those of this rank that the checks look at.
    """

    rank: int
    local_rank: int
    node: str
    machine: str
    container: str
    compared: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    cpus_of_node: int = 0
    shared_memory_bytes: int | None = None
    shared_memory_free_bytes: int | None = None
    locked_bytes: int | None = None
    device_files: int = 0
    nvml_problem: str = ""
    gpus: tuple[GpuFacts, ...] = ()
    interface_names: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    ports: tuple[Port, ...] = ()


def pack(facts: Facts) -> bytes:
    """Return *facts* as they are posted."""
    return zlib.compress(json.dumps(asdict(facts)).encode(errors="replace"))


def unpack(posted: bytes) -> Facts | None:
    """Return the facts in *posted*; None if another release, or no audit, posted that."""
    try:
        unpacker = zlib.decompressobj()
        document: dict[str, Any] = json.loads(unpacker.decompress(posted, LARGEST_BYTES))
        document["cpus"] = tuple(document["cpus"])
        document["interface_names"] = tuple(document["interface_names"])
        document["gpus"] = tuple(
            GpuFacts(**(gpu | {"cpus": tuple(gpu["cpus"])})) for gpu in document["gpus"]
        )
        document["interfaces"] = tuple(Interface(**one) for one in document["interfaces"])
        document["ports"] = tuple(Port(**port) for port in document["ports"])
        return Facts(**document)
    except (KeyError, TypeError, ValueError, zlib.error):
        return None
