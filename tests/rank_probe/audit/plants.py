"""Misconfigurations to plant in a healthy launch, with the check that should find each."""

import dataclasses
from typing import Any

from rank_probe.audit.facts import GpuFacts, Interface, Port
from rank_probe.audit.findings import AuditStatus
from tests.rank_probe.audit.healthy import facts, gpus, settings, uuid

Changes = dict[int, dict[str, Any]]
EVERY = range(8)
NODE_1 = range(4, 8)


def on(ranks: Any, **change: Any) -> Changes:
    """Return *change* on each of *ranks*."""
    return {rank: change for rank in ranks}


def gpu(node: int, index: int, **change: Any) -> tuple[GpuFacts, ...]:
    """Return the GPUs of *node* with one changed."""
    return tuple(
        dataclasses.replace(one, **change) if one.index == index else one for one in gpus(node)
    )


def ports(*rates: float, device: str = "mlx5_") -> tuple[Port, ...]:
    """Return ports of *rates* in Gb/s, 0 for one that is down."""
    return tuple(
        Port(f"{device}{index}", "1", "InfiniBand", rate > 0, rate)
        for index, rate in enumerate(rates)
    )


def mtu(number: int) -> dict[str, Any]:
    """Return an interface with this MTU."""
    return {"interfaces": (Interface("eth0", number, False, "the default route"),)}


def variables(**compared: str) -> dict[str, Any]:
    """Return the change of a rank with other *compared* variables."""
    return {"compared": {"NCCL_DEBUG": "WARN", **compared}}


@dataclasses.dataclass(frozen=True)
class Plant:
    """Changes of a healthy launch, and what is then said of them, as *status*."""

    status: AuditStatus
    says: str
    changes: Changes
    of_launch: dict[str, Any]


def fails(says: str, changes: Changes | None = None, **of_launch: Any) -> Plant:
    """Return a plant that fails the audit."""
    return Plant(AuditStatus.FAIL, says, changes or {}, of_launch)


def warns(says: str, changes: Changes | None = None, **of_launch: Any) -> Plant:
    """Return a plant that the audit warns of."""
    return Plant(AuditStatus.WARN, says, changes or {}, of_launch)


PLANTS: dict[str, list[Plant]] = {
    "reported": [
        fails("rank 3 of 8 did not report", missing=(3,)),
    ],
    "device_per_rank": [
        fails(
            "ranks 4-5 use the same GPU 1 (GPU-1-1) on node-1",
            on([4, 5], **settings(CUDA_VISIBLE_DEVICES=uuid(1, 1), CUDA_DEVICE_ORDER="PCI_BUS_ID"))
            | on([6, 7], **settings(CUDA_DEVICE_ORDER="PCI_BUS_ID")),
        ),
        fails(
            "rank 2 (node-0) sees no GPU: CUDA_VISIBLE_DEVICES=-1",
            {2: settings(CUDA_VISIBLE_DEVICES="-1")},
        ),
        fails(
            "rank 7 (node-1), with local rank 3, sees 3 GPUs",
            on(NODE_1, **settings(CUDA_VISIBLE_DEVICES="0,1,2")),
        ),
    ],
    "device_order": [
        fails(
            "ranks 0-1 on node-0 see the same GPUs in different orders: 0, 1, 2, 3, and 0, 1, 3, 2",
            {1: settings(CUDA_VISIBLE_DEVICES="0,1,3,2")},
        ),
        fails(
            "differs on node-1: unset on ranks 4-5, 7, PCI_BUS_ID on rank 6",
            {6: settings(CUDA_DEVICE_ORDER="PCI_BUS_ID")},
        ),
        warns(
            "by number without CUDA_DEVICE_ORDER=PCI_BUS_ID on ranks 4-7 of node-1",
            on(NODE_1, **settings(CUDA_VISIBLE_DEVICES="0,1,2,3"), gpus=gpu(1, 3, model="A100")),
        ),
    ],
    "environment": [
        fails(
            "NCCL_ALGO is Ring on rank 5; on the others it is unset",
            {5: variables(NCCL_ALGO="Ring")},
        ),
        fails(
            "UCX_TLS differs: unset on ranks 0-3, tcp on ranks 4-7",
            on(NODE_1, **variables(UCX_TLS="tcp")),
        ),
        fails(
            "FI_AUTH_KEY is another value, which may be secret, on rank 0",
            {0: variables(FI_AUTH_KEY="hidden 0123abcd")},
        ),
        warns(
            "PYTORCH_ALLOC_CONF is backend:native on rank 7",
            {7: variables(PYTORCH_ALLOC_CONF="backend:native")},
        ),
    ],
    "versions": [
        fails(
            "torch is 2.12.0 on rank 3; on the others it is 2.13.0",
            {3: {"versions": {**facts(3).versions, "torch": "2.12.0"}}},
        ),
        warns(
            "driver differs: 580.1 on ranks 0-3, none on ranks 4-7",
            on(NODE_1, versions={**facts(0).versions, "driver": ""}),
        ),
    ],
    "affinity": [
        fails("ranks 0-1 on node-0 are all bound to CPU 0", on([0, 1], cpus=(0,))),
        warns("rank 6 on node-1 may use 3 CPUs, other ranks there 8", {6: {"cpus": (16, 17, 18)}}),
    ],
    "numa": [
        fails(
            "rank 3 (node-0) uses GPU 3 (GPU-0-3), but none of its 8 CPUs are near it",
            {3: {"cpus": tuple(range(8))}},
        ),
        warns("only 25% of its 8 CPUs are near it", {1: {"cpus": tuple(range(14, 22))}}),
    ],
    "shared_memory": [
        fails(
            "/dev/shm on node-0 has 60 MiB free of 64 MiB; 4 ranks may want 128 MiB",
            on(range(4), shared_memory_bytes=64 * 2**20, shared_memory_free_bytes=60 * 2**20),
        ),
    ],
    "locked_memory": [
        fails(
            "ranks 1-2 may lock 64 KiB of memory (ulimit -l), and NCCL registers its buffers",
            on([1, 2], locked_bytes=65536),
        ),
    ],
    "socket_interface": [
        fails(
            "NCCL_SOCKET_IFNAME=bond names no interface of node-0 (rank 0), which has eth0, lo",
            on(EVERY, **settings(NCCL_SOCKET_IFNAME="bond"), interfaces=()),
        ),
        fails(
            "eth0 of node-1 is down",
            on(NODE_1, interfaces=(Interface("eth0", 9000, True, "the default route"),)),
        ),
    ],
    "mtu": [
        warns("the MTU differs: 9000 on node-0; 1500 on node-1", on(NODE_1, **mtu(1500))),
    ],
    "infiniband": [
        fails("port 1 of mlx5_1 on node-1 is not active", on(NODE_1, ports=ports(400, 0))),
        warns("port 1 of mlx5_1 on node-0 is not active", on(EVERY, ports=ports(400, 0))),
        warns(
            "slower than most InfiniBand ports, which have 400 Gb/s: mlx5_1 on node-1 (100 Gb/s)",
            on(NODE_1, ports=ports(400, 100)),
        ),
        fails(
            "NCCL_IB_HCA=mlx4 names no port of node-0", on(EVERY, **settings(NCCL_IB_HCA="mlx4"))
        ),
    ],
}
