"""`rank-probe audit` in four real ranks on two nodes finds each planted fault and nothing else.

The ranks run this file, too. Each node is a folder: /proc and /sys are files, and the GPUs are
those of the NVML stub. Settings that a process can change for itself are real.
"""

import ctypes
import json
import os
import resource
import sys
from pathlib import Path
from typing import Final

import pytest

from rank_probe.__main__ import main as rank_probe
from tests import nvmlstub
from tests.rank_probe.forks import Zygote

pytestmark = pytest.mark.e2e

RANKS: Final = 4
NODES: Final = ("node-a", "node-b")

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
}
INFINIBAND: Final = "sys/class/infiniband/mlx5_{}/ports/1"
for device in range(4):
    FILES[f"{INFINIBAND.format(device)}/state"] = "4: ACTIVE"
    FILES[f"{INFINIBAND.format(device)}/rate"] = "400 Gb/sec (4X NDR)"
    FILES[f"{INFINIBAND.format(device)}/link_layer"] = "InfiniBand"
# What differs on the last node.
PLANTED: Final = {
    "proc/self/status": "CapEff:\t0000000000000000",
    "sys/class/net/eth0/mtu": "1500",
    f"{INFINIBAND.format(1)}/rate": "100 Gb/sec (1X NDR)",
}
FOUND: Final = {
    "device_order": "on node-a: unset on rank 0, PCI_BUS_ID on rank 1",
    "environment": "NCCL_ALGO is Ring on rank 2; on the others it is unset",
    "affinity": "rank 3 on node-b may use 1 CPU, other ranks there ",
    "locked_memory": "ranks 2-3 may lock 64 KiB of memory (ulimit -l)",
    "mtu": "the MTU differs: 9000 on node-a; 1500 on node-b",
    "infiniband": "mlx5_1 on node-b (100 Gb/s)",
}


def be_a_rank(folder: str, library: str) -> int:
    """Audit this rank, with what is planted in it; none of that needs root."""
    ctypes.CDLL(library)  # Later loads by name in this process find it.
    rank = int(os.environ["RANK"])
    if rank == 1:
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if rank == 2:
        os.environ["NCCL_ALGO"] = "Ring"
    if rank == 3:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    node = Path(folder) / NODES[rank // 2]
    if node.name == NODES[-1]:
        _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (2**16, most))
    paths = ["--path.procfs", str(node / "proc"), "--path.sysfs", str(node / "sys")]
    return rank_probe(["audit", "--json", *paths])


def test_each_planted_misconfiguration_is_named(zygote: Zygote, tmp_path: Path) -> None:
    """Each finding names its ranks or node, and there are no other findings."""
    for node in NODES:
        for name, text in (FILES | (PLANTED if node == NODES[-1] else {})).items():
            path = tmp_path / node / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.format(node=node))
    library = nvmlstub.build(tmp_path)
    command = ("tests.e2e.test_audit", str(tmp_path), str(library))
    gpus = nvmlstub.environment(library, 8)
    with zygote.ranks(tmp_path, *command, ranks=RANKS, **gpus) as ranks:
        ended = [rank.wait() for rank in ranks]
    document = json.loads(ranks[0].output.read_text())
    reasons = {
        check["check"]: check["findings"][0]["reason"]
        for check in document["checks"]
        if check["status"] in ("fail", "warn")
    }

    assert ended == [1] * RANKS
    assert (document["ok"], document["ranks"], document["missing"]) == (False, RANKS, [])
    assert document["nodes"] == list(NODES)
    assert set(reasons) == set(FOUND)
    assert [check for check, reason in FOUND.items() if reason not in reasons[check]] == []


if __name__ == "__main__":
    sys.exit(be_a_rank(*sys.argv[1:]))
