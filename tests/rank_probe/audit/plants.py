"""Misconfigurations to plant in a healthy launch, with the check that should find each."""

import dataclasses
from typing import Any

from rank_probe.audit.readings.facts import GpuFacts, Interface, Port
from tests.rank_probe.audit.healthy import GIB, SYS, facts, gpus, settings, uuid

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


PLANTS: list[tuple[str, Changes, dict[str, Any], str, str, str]] = [
    ("missing", {}, {"missing": (3,)}, "reported", "FAIL", "rank 3 of 8 did not report"),
    (
        "same GPU",
        on([4, 5], **settings(CUDA_VISIBLE_DEVICES=uuid(1, 1), CUDA_DEVICE_ORDER="PCI_BUS_ID"))
        | on([6, 7], **settings(CUDA_DEVICE_ORDER="PCI_BUS_ID")),
        {},
        "device_per_rank",
        "FAIL",
        "ranks 4-5 use the same GPU 1 (GPU-1-1) on node-1",
    ),
    (
        "no GPU",
        {2: settings(CUDA_VISIBLE_DEVICES="-1")},
        {},
        "device_per_rank",
        "FAIL",
        "rank 2 (node-0) sees no GPU: CUDA_VISIBLE_DEVICES=-1",
    ),
    (
        "too few GPUs",
        on(NODE_1, **settings(CUDA_VISIBLE_DEVICES="0,1,2")),
        {},
        "device_per_rank",
        "FAIL",
        "rank 7 (node-1), with local rank 3, sees 3 GPUs",
    ),
    (
        "another order",
        {1: settings(CUDA_VISIBLE_DEVICES="0,1,3,2")},
        {},
        "device_order",
        "FAIL",
        "ranks 0-1 on node-0 see the same GPUs in different orders: 0, 1, 2, 3, and 0, 1, 3, 2",
    ),
    (
        "CUDA_DEVICE_ORDER",
        {6: settings(CUDA_DEVICE_ORDER="PCI_BUS_ID")},
        {},
        "device_order",
        "FAIL",
        "differs on node-1: unset on ranks 4-5, 7, PCI_BUS_ID on rank 6",
    ),
    (
        "by number among models",
        on(NODE_1, **settings(CUDA_VISIBLE_DEVICES="0,1,2,3"), gpus=gpu(1, 3, model="A100")),
        {},
        "device_order",
        "WARN",
        "by number without CUDA_DEVICE_ORDER=PCI_BUS_ID on ranks 4-7 of node-1",
    ),
    (
        "NCCL variable",
        {5: variables(NCCL_ALGO="Ring")},
        {},
        "environment",
        "FAIL",
        "NCCL_ALGO is Ring on rank 5; on the others it is unset",
    ),
    (
        "half and half",
        on(NODE_1, **variables(UCX_TLS="tcp")),
        {},
        "environment",
        "FAIL",
        "UCX_TLS differs: unset on ranks 0-3, tcp on ranks 4-7",
    ),
    (
        "secret",
        {0: variables(FI_AUTH_KEY="hidden 0123abcd")},
        {},
        "environment",
        "FAIL",
        "FI_AUTH_KEY is another value, which may be secret, on rank 0",
    ),
    (
        "allocator",
        {7: variables(PYTORCH_ALLOC_CONF="backend:native")},
        {},
        "environment",
        "WARN",
        "PYTORCH_ALLOC_CONF is backend:native on rank 7",
    ),
    (
        "torch",
        {3: {"versions": {**facts(3).versions, "torch": "2.12.0"}}},
        {},
        "versions",
        "FAIL",
        "torch is 2.12.0 on rank 3; on the others it is 2.13.0",
    ),
    (
        "driver",
        on(NODE_1, versions={**facts(0).versions, "driver": ""}),
        {},
        "versions",
        "WARN",
        "driver differs: 580.1 on ranks 0-3, none on ranks 4-7",
    ),
    (
        "same CPU",
        on([0, 1], cpus=(0,)),
        {},
        "affinity",
        "FAIL",
        "ranks 0-1 on node-0 are all bound to CPU 0",
    ),
    (
        "fewer CPUs",
        {6: {"cpus": (16, 17, 18)}},
        {},
        "affinity",
        "WARN",
        "rank 6 on node-1 may use 3 CPUs, other ranks there 8",
    ),
    (
        "other socket",
        {3: {"cpus": tuple(range(8))}},
        {},
        "numa",
        "FAIL",
        "rank 3 (node-0) uses GPU 3 (GPU-0-3), but none of its 8 CPUs are near it",
    ),
    (
        "mostly the other socket",
        {1: {"cpus": tuple(range(14, 22))}},
        {},
        "numa",
        "WARN",
        "only 25% of its 8 CPUs are near it",
    ),
    (
        "threads",
        on(range(4), **settings(OMP_NUM_THREADS="32")),
        {},
        "cpus",
        "FAIL",
        "4 ranks on node-0, with 32 threads each, may keep 128 CPUs busy and have 32 CPUs",
    ),
    (
        "workers and pinning",
        {},
        {"workers": 6, "pin_memory": True},
        "cpus",
        "WARN",
        "with 2 threads and 6 loader workers and 1 pinning thread each, may keep 36 CPUs busy",
    ),
    (
        "threads unset",
        on([4, 5], settings={}),
        {},
        "cpus",
        "WARN",
        "OMP_NUM_THREADS is unset on ranks 4-5",
    ),
    (
        "quota",
        on(NODE_1, cpu_quota=2.5),
        {},
        "cpu_quota",
        "FAIL",
        "the control group on node-1 allows 2.5 CPUs for 4 ranks",
    ),
    (
        "quota below the threads",
        on(NODE_1, cpu_quota=6.0),
        {},
        "cpu_quota",
        "WARN",
        "may keep 8 CPUs busy and have a CPU quota of 6",
    ),
    (
        "memory",
        on(NODE_1, memory_free_bytes=3 * GIB, memory_limit_bytes=4 * GIB),
        {},
        "memory_limit",
        "FAIL",
        "node-1 has 3 GiB of memory left of the control group's 4 GiB; 4 ranks may want 8 GiB",
    ),
    (
        "shared memory",
        on(range(4), shared_memory_bytes=64 * 2**20, shared_memory_free_bytes=60 * 2**20),
        {},
        "shared_memory",
        "FAIL",
        "/dev/shm on node-0 has 60 MiB free of 64 MiB; 4 ranks may want 128 MiB",
    ),
    (
        "locked memory",
        on([1, 2], locked_bytes=65536),
        {},
        "locked_memory",
        "FAIL",
        "ranks 1-2 may lock 64 KiB of memory (ulimit -l), and NCCL registers its buffers",
    ),
    (
        "open files",
        on([5], open_files=128, most_open_files=4096),
        {},
        "open_files",
        "FAIL",
        "rank 5 may open 128 files (ulimit -n), and may want 264 in a job of 8 ranks",
    ),
    (
        "open files for workers",
        on(EVERY, open_files=1024),
        {"workers": 6},
        "open_files",
        "WARN",
        "ranks 0-7 may open 1024 files (ulimit -n), and may want 1032",
    ),
    (
        "no such interface",
        on(EVERY, **settings(NCCL_SOCKET_IFNAME="bond"), interfaces=()),
        {},
        "socket_interface",
        "FAIL",
        "NCCL_SOCKET_IFNAME=bond names no interface of node-0 (rank 0), which has eth0, lo",
    ),
    (
        "interface down",
        on(NODE_1, interfaces=(Interface("eth0", 9000, True, "the default route"),)),
        {},
        "socket_interface",
        "FAIL",
        "eth0 of node-1 is down",
    ),
    (
        "MTU",
        on(NODE_1, **mtu(1500)),
        {},
        "mtu",
        "WARN",
        "the MTU differs: 9000 on node-0, 1500 on node-1",
    ),
    (
        "port down",
        on(NODE_1, ports=ports(400, 0)),
        {},
        "infiniband",
        "FAIL",
        "port 1 of mlx5_1 on node-1 is not active",
    ),
    (
        "port down everywhere",
        on(EVERY, ports=ports(400, 0)),
        {},
        "infiniband",
        "WARN",
        "port 1 of mlx5_1 on node-0 is not active",
    ),
    (
        "slow port",
        on(NODE_1, ports=ports(400, 100)),
        {},
        "infiniband",
        "WARN",
        "slower than most InfiniBand ports, which have 400 Gb/s: mlx5_1 on node-1 (100 Gb/s)",
    ),
    (
        "no such adapter",
        on(EVERY, **settings(NCCL_IB_HCA="mlx4")),
        {},
        "infiniband",
        "FAIL",
        "NCCL_IB_HCA=mlx4 names no port of node-0",
    ),
    (
        "NVLinks",
        on(NODE_1, gpus=gpu(1, 2, nvlinks=17)),
        {},
        "peer_paths",
        "FAIL",
        "GPU 2 (GPU-1-2) on node-1 has 17 NVLinks up, the others 18",
    ),
    (
        "path",
        on(
            range(4),
            gpus=tuple(
                dataclasses.replace(
                    one,
                    paths=dict.fromkeys(one.paths, 10 if one.index < 3 else SYS),
                )
                for one in gpus(0)
            ),
        ),
        {},
        "peer_paths",
        "WARN",
        "farther from their peers than most GPUs on node-0 (3 x PIX): GPU 3 (3 x SYS)",
    ),
]
