"""A real launch that audits itself, and what is planted in it: one misconfiguration each.

Four ranks run on two machines that exist only as folders, two ranks each: their /proc and /sys are
files, their GPUs those of the NVML stub. What a process can change for itself is real: variables,
limits and CPU affinity.
"""

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


def write_nodes(folder: Path, plants: Sequence[Plant]) -> None:
    """Write the files of both machines into *folder*, with those of *plants*."""
    for node in NODES:
        files = dict(FILES)
        for plant in plants:
            files |= plant.files if node == NODES[-1] else {}
        for name, text in files.items():
            path = folder / node / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.format(node=node))


def node_of(rank: int) -> str:
    """Return the machine that *rank* runs on."""
    return NODES[rank * len(NODES) // RANKS]


def launch(folder: Path, library: Path, plants: Sequence[Plant]) -> dict[str, Any]:
    """Return what the audit of a launch with *plants* prints, whose files go into *folder*."""
    write_nodes(folder, plants)
    names = ";".join(plant.name for plant in plants)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(RANKS), "-m", "tests.e2e.audit_launch"),
            *(str(folder), names, "--timeout", AUDIT_TIMEOUT),
        ],
        cwd=ROOT,
        env=os.environ
        | nvmlstub.environment(library, GPUS, folder / "scenario")
        | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
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
