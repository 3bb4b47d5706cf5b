"""What `python -m benchmarks.audit` plants: one misconfiguration each, and who should find it.

Four ranks run on two machines that exist only as folders, two ranks each: their /proc and /sys are
files, their GPUs those of the NVML stub. What a process can change for itself is real: variables,
limits, CPU affinity, and a small /dev/shm in a mount namespace.
"""

import ctypes
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

RANKS: Final = 4
NODES: Final = ("node-a", "node-b")
GPUS: Final = 8
PORTS: Final = 4
NEW_MOUNT_NAMESPACE: Final = 0x20000
RECURSIVE_PRIVATE: Final = 0x4000 | 0x40000

# By path below a machine's folder; {node} is its name.
FILES: Final = {
    "proc/sys/kernel/random/boot_id": "{node}",
    "proc/sys/kernel/hostname": "{node}",
    "proc/self/cgroup": "0::/job",
    # CAP_IPC_LOCK, so that the limit of this machine does not matter.
    "proc/self/status": "CapEff:\t000001ffffffffff",
    "proc/net/route": "Iface\tDestination\neth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun",
    "sys/devices/system/cpu/online": "0-63",
    "sys/class/net/lo/mtu": "65536",
    "sys/class/net/eth0/mtu": "9000",
    "sys/class/net/eth0/operstate": "up",
} | {
    f"sys/class/infiniband/mlx5_{device}/ports/1/{name}": text
    for device in range(PORTS)
    for name, text in (
        ("state", "4: ACTIVE"),
        ("rate", "400 Gb/sec (4X NDR)"),
        ("link_layer", "InfiniBand"),
    )
}


def uuid(gpu: int) -> str:
    """Return the UUID of a GPU of the stub."""
    return f"GPU-00000000-0000-0000-0000-{gpu:012d}"


@dataclass(frozen=True, slots=True)
class Plant:
    """One misconfiguration, which *check* should find and nothing else.

    *variables* are set on *ranks*, where *do* is also called; *files* are written on *nodes*.
    """

    name: str
    check: str
    ranks: Sequence[int] = range(RANKS)
    variables: Mapping[str, str] = field(default_factory=dict)
    do: Callable[[], object] | None = None
    nodes: Sequence[str] = NODES[1:]
    files: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()


def small_shared_memory() -> None:
    """Mount 16 MiB at /dev/shm, for this process only; needs root."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.unshare(NEW_MOUNT_NAMESPACE)
    libc.mount(b"none", b"/", None, RECURSIVE_PRIVATE, None)
    if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=16m"):
        raise OSError(ctypes.get_errno(), "cannot mount a small /dev/shm: run this as root")


def limit(what: int, value: int) -> None:
    """Lower one limit of this process."""
    resource.setrlimit(what, (value, resource.getrlimit(what)[1]))


def absent() -> None:
    """End this rank before it reports."""
    os._exit(0)


PLANTS: Final = (
    Plant("nothing", ""),
    Plant("a rank that never reports", "reported", [3], do=absent, options=["--timeout", "40s"]),
    Plant(
        "two ranks on one GPU",
        "device_per_rank",
        [0, 1],
        {"CUDA_VISIBLE_DEVICES": uuid(0)},
    ),
    Plant("a rank that sees no GPU", "device_per_rank", [1], {"CUDA_VISIBLE_DEVICES": ""}),
    Plant(
        "fewer GPUs visible than ranks",
        "device_per_rank",
        variables={"CUDA_VISIBLE_DEVICES": "0,1"},
    ),
    Plant(
        "CUDA_DEVICE_ORDER on one rank", "device_order", [1], {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    ),
    Plant(
        "GPUs in another order on one rank",
        "device_order",
        [1],
        {"CUDA_VISIBLE_DEVICES": "0,1,3,2,4,5,6,7"},
    ),
    Plant("NCCL_ALGO on one rank", "environment", [2], {"NCCL_ALGO": "Ring"}),
    Plant(
        "another allocator on one rank",
        "environment",
        [3],
        {"PYTORCH_ALLOC_CONF": "backend:native"},
    ),
    Plant(
        "another driver on one node",
        "versions",
        files={
            "proc/driver/nvidia/version": FILES["proc/driver/nvidia/version"].replace("580", "535")
        },
    ),
    Plant("two ranks on one CPU", "affinity", [0, 1], do=lambda: os.sched_setaffinity(0, {0})),
    Plant("one rank on one CPU", "affinity", [3], do=lambda: os.sched_setaffinity(0, {1})),
    Plant("CPUs of the other socket", "numa", [3], {"CUDA_VISIBLE_DEVICES": uuid(5)}),
    Plant("a small /dev/shm", "shared_memory", [2, 3], do=small_shared_memory),
    Plant(
        "little lockable memory",
        "locked_memory",
        [2, 3],
        do=lambda: limit(resource.RLIMIT_MEMLOCK, 2**16),
        files={"proc/self/status": "CapEff:\t0000000000000000"},
    ),
    Plant(
        "an interface that is not there",
        "socket_interface",
        variables={"NCCL_SOCKET_IFNAME": "bond7"},
    ),
    Plant(
        "an interface that is down",
        "socket_interface",
        files={"sys/class/net/eth0/operstate": "down"},
    ),
    Plant("another MTU on one node", "mtu", files={"sys/class/net/eth0/mtu": "1500"}),
    Plant(
        "an InfiniBand port that is down",
        "infiniband",
        files={
            "sys/class/infiniband/mlx5_2/ports/1/state": "1: DOWN",
            "sys/class/infiniband/mlx5_2/ports/1/rate": "10 Gb/sec (4X SDR)",
        },
    ),
    Plant(
        "a slow InfiniBand port",
        "infiniband",
        files={"sys/class/infiniband/mlx5_1/ports/1/rate": "100 Gb/sec (1X NDR)"},
    ),
)


def write_nodes(folder: Path, plants: Sequence[Plant]) -> None:
    """Write the files of both machines into *folder*, with those of *plants*."""
    for node in NODES:
        files = dict(FILES)
        for plant in plants:
            files |= plant.files if node in plant.nodes else {}
        for name, text in files.items():
            path = folder / node / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.format(node=node))


def node_of(rank: int) -> str:
    """Return the machine that *rank* runs on."""
    return NODES[rank * len(NODES) // RANKS]
