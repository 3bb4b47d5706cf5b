"""A rank of a launch that audits itself, and what is planted in it: one misconfiguration each.

Four ranks run on two machines that exist only as folders, two ranks each: their /proc and /sys are
files, their GPUs those of the NVML stub. What a process can change for itself is real: variables,
limits and CPU affinity.
"""

import ctypes
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rank_probe.__main__ import main as rank_probe

RANKS: Final = 4
NODES: Final = ("node-a", "node-b")
PORTS: Final = 4

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


@dataclass(frozen=True, slots=True)
class Plant:
    """One misconfiguration, which *check* should find and nothing else, with *said* as the reason.

    *variables* are set on *ranks*, where *do* is also called; *files* are written on the last node.
    """

    name: str
    check: str
    said: str
    ranks: Sequence[int] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    do: Callable[[], object] | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def limit(what: int, value: int) -> None:
    """Lower one limit of this process."""
    resource.setrlimit(what, (value, resource.getrlimit(what)[1]))


# Each changes other ranks or another limit, and none needs root.
PLANTS: Final = (
    Plant(
        "CUDA_DEVICE_ORDER on one rank",
        "device_order",
        "on node-a: unset on rank 0, PCI_BUS_ID on rank 1",
        [1],
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    ),
    Plant(
        "NCCL_ALGO on one rank",
        "environment",
        "NCCL_ALGO is Ring on rank 2; on the others it is unset",
        [2],
        {"NCCL_ALGO": "Ring"},
    ),
    Plant(
        "one rank on one CPU",
        "affinity",
        "rank 3 on node-b may use 1 CPU, other ranks there ",
        [3],
        do=lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}),
    ),
    Plant(
        "little lockable memory",
        "locked_memory",
        "ranks 2-3 may lock 64 KiB of memory (ulimit -l)",
        [2, 3],
        do=lambda: limit(resource.RLIMIT_MEMLOCK, 2**16),
        files={"proc/self/status": "CapEff:\t0000000000000000"},
    ),
    Plant(
        "another MTU on one node",
        "mtu",
        "the MTU differs: 9000 on node-a; 1500 on node-b",
        files={"sys/class/net/eth0/mtu": "1500"},
    ),
    Plant(
        "a slow InfiniBand port",
        "infiniband",
        "mlx5_1 on node-b (100 Gb/s)",
        files={"sys/class/infiniband/mlx5_1/ports/1/rate": "100 Gb/sec (1X NDR)"},
    ),
)


def write_nodes(folder: Path) -> None:
    """Write the files of both machines into *folder*, with those of the plants."""
    for node in NODES:
        files = dict(FILES)
        for plant in PLANTS:
            files |= plant.files if node == NODES[-1] else {}
        for name, text in files.items():
            path = folder / node / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.format(node=node))


def node_of(rank: int) -> str:
    """Return the machine that *rank* runs on."""
    return NODES[rank * len(NODES) // RANKS]


def main() -> int:
    """Audit this rank, changed as the plants say."""
    folder, library = sys.argv[1:]
    ctypes.CDLL(library)  # By its name it is found from now on, in this process.
    rank = int(os.environ["RANK"])
    for plant in PLANTS:
        if rank in plant.ranks:
            os.environ |= plant.variables
            if plant.do is not None:
                plant.do()
    node = Path(folder) / node_of(rank)
    paths = ["--path.procfs", str(node / "proc"), "--path.sysfs", str(node / "sys")]
    return rank_probe(["audit", "--json", *paths])


if __name__ == "__main__":
    sys.exit(main())
