"""A real launch that audits itself, and what is planted in it: one misconfiguration each.

Four ranks run on two machines that exist only as folders, two ranks each: their /proc and /sys are
files, their GPUs those of the NVML stub. What a process can change for itself is real: variables,
limits, CPU affinity, and a small /dev/shm in a mount namespace.
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from devstack.parts import ROOT
from rank_probe.__main__ import main
from tests import nvmlstub

TIMEOUT_SECONDS = 150.0
# A busy machine imports torch for long, and gives up on nobody.
AUDIT_TIMEOUT = "2m"
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


class Failed(Exception):
    """The audit printed no document; what it printed instead."""


def launch(folder: Path, library: Path, plants: Sequence[Plant]) -> dict[str, Any]:
    """Return what the audit of a launch with *plants* prints, whose files go into *folder*."""
    write_nodes(folder, plants)
    options = [option for plant in plants for option in plant.options]
    names = ";".join(plant.name for plant in plants)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(RANKS), "-m", "tests.e2e.audit_launch"),
            *(str(folder), names, "--timeout", AUDIT_TIMEOUT, *options),
        ],
        cwd=ROOT,
        env=os.environ
        | nvmlstub.environment(library, GPUS, folder / "scenario")
        | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise Failed(f"{done.stdout}\n{done.stderr}") from error
    return document


def troubles(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the worst finding of each check that warned or failed, by check."""
    return {
        check["check"]: check["findings"][0]
        for check in document["checks"]
        if check["status"] in ("fail", "warn")
    }


def prepare(rank: int, plants: list[Plant]) -> None:
    """Change this process as *plants* say."""
    for plant in plants:
        if rank in plant.ranks:
            os.environ |= plant.variables
            if plant.do is not None:
                plant.do()


if __name__ == "__main__":
    folder, names, *options = sys.argv[1:]
    rank = int(os.environ["RANK"])
    prepare(rank, [plant for plant in PLANTS if plant.name in names.split(";")])
    node = Path(folder) / node_of(rank)
    paths = ["--path.procfs", str(node / "proc"), "--path.sysfs", str(node / "sys")]
    sys.exit(main(["audit", "--json", *paths, *options]))
