"""Each misconfiguration alone, in an otherwise healthy launch: found by its check, and no other."""

import dataclasses
from typing import Any

import pytest

from rank_probe.audit import names
from rank_probe.audit.catalog import CHECKS, audit
from rank_probe.audit.facts import Gpu, Interface, Port
from rank_probe.audit.findings import ORDER, Finding, Status, outcome
from rank_probe.audit.launch import Launch
from tests.rank_probe.audit.healthy import GIB, facts, gpus, launch, settings, troubles, uuid

Changes = dict[int, dict[str, Any]]
EVERY = range(8)
NODE_1 = range(4, 8)


def on(ranks: Any, **change: Any) -> Changes:
    """Return *change* on each of *ranks*."""
    return {rank: change for rank in ranks}


def gpu(node: int, index: int, **change: Any) -> tuple[Gpu, ...]:
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
                    paths={other: 10 if one.index < 3 else SYS for other, SYS in one.paths.items()},
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


def test_healthy_launch_has_no_trouble() -> None:
    """Nothing is found on a clean launch, and everything is looked at that can be."""
    outcomes = audit(launch())

    assert {one.check for one in outcomes} == {check.name for check in CHECKS}
    assert tuple(check.name for check in CHECKS) == names.CHECKS
    assert {one.check: one.findings for one in outcomes if one.status is not Status.OK} == {
        "socket_interface": (
            Finding(Status.NOT_CHECKED, "neither NCCL_SOCKET_IFNAME nor GLOO_SOCKET_IFNAME is set"),
        )
    }


@pytest.mark.parametrize(
    ("changes", "of_launch", "check", "status", "says"),
    [plant[1:] for plant in PLANTS],
    ids=[plant[0] for plant in PLANTS],
)
def test_planted_misconfiguration_is_found(
    changes: Changes, of_launch: dict[str, Any], check: str, status: str, says: str
) -> None:
    """Its check names it and who has it, says what to do, and no other check complains."""
    found = troubles(launch(changes, **of_launch))

    assert list(found) == [check]
    assert found[check].status is Status[status]
    assert says in found[check].findings[0].reason
    assert found[check].findings[0].advice


def test_every_check_has_a_plant() -> None:
    """A new check comes with the misconfiguration that it finds."""
    assert {plant[3] for plant in PLANTS} == {check.name for check in CHECKS}


def test_worst_is_shown_first() -> None:
    """Failures, warnings, what was not checked, and what is fine."""
    outcomes = audit(launch({2: {"open_files": 10}, 5: {"cpus": (8, 9)}}))
    statuses = [ORDER.index(one.status) for one in outcomes]

    assert statuses == sorted(statuses)
    assert [one.check for one in outcomes[:2]] == ["open_files", "affinity"]


def test_many_findings_are_counted_not_listed() -> None:
    """A mistake on every node of a large job fits on a screen."""
    same = [Finding(Status.WARN, f"node {number}", "mend it") for number in range(100)]
    found = outcome("mtu", [*same, Finding(Status.OK, "fine")])

    assert (len(found.findings), found.more) == (8, 92)


def test_node_without_gpus_is_not_judged_on_them() -> None:
    """A job on CPUs is neither right nor wrong about GPUs."""
    outcomes = audit(launch({rank: {"gpus": (), "device_files": 0} for rank in EVERY}))
    skipped = {one.check for one in outcomes if one.status is Status.NOT_CHECKED}

    assert skipped >= {"device_per_rank", "device_order", "numa", "peer_paths"}
    assert not troubles(launch({rank: {"gpus": (), "device_files": 0} for rank in EVERY}))


def test_without_pynvml_devices_are_counted_by_their_files() -> None:
    """What only NVML knows is not checked, and says so; the device files still count."""
    blind = {"gpus": (), "nvml_problem": "pynvml is not installed"}
    few = launch({rank: {**blind, "device_files": 3} for rank in EVERY})
    outcomes = {one.check: one for one in audit(few)}

    assert outcomes["numa"].findings[0].reason == "pynvml is not installed"
    assert outcomes["peer_paths"].findings[0].reason == "pynvml is not installed"
    assert [one.reason for one in outcomes["device_per_rank"].findings] == [
        "rank 3 (node-0), with local rank 3, sees 3 GPUs on node-0: too few",
        "rank 7 (node-1), with local rank 3, sees 3 GPUs on node-1: too few",
    ]


@pytest.mark.parametrize(
    "visible",
    [
        ["0", "1", "2", "3"],
        ["0,1,2,3"] * 4,
        [uuid(0, 3), uuid(0, 2), uuid(0, 1), uuid(0, 0)],
    ],
)
def test_usual_ways_to_give_gpus_are_fine(visible: list[str]) -> None:
    """A GPU for each rank, or all for all."""
    changes = {
        rank: settings(CUDA_VISIBLE_DEVICES=visible[rank], CUDA_DEVICE_ORDER="PCI_BUS_ID")
        | {"cpus": tuple(range(32))}
        for rank in range(4)
    }

    assert not troubles(launch(changes | on(NODE_1, **settings())))


def test_two_gpus_for_each_rank_are_fine() -> None:
    """Lists that have nothing in common belong to their ranks as a whole."""
    two = [
        facts(rank, **settings(CUDA_VISIBLE_DEVICES=visible))
        for rank, visible in ((2, "0,1"), (3, "2,3"))
    ]

    assert "device_per_rank" not in troubles(Launch(two, 2))


def test_process_alone_is_compared_with_nobody() -> None:
    """On a node without a launcher it stands for the ranks to come."""
    node = Launch(
        [facts(0, cpus=tuple(range(32)))],
        cannot_compare="there is no other rank",
        alone=True,
        ranks_here=5,
    )
    outcomes = {one.check: one for one in audit(node)}

    assert outcomes["environment"].findings[0].reason == "there is no other rank"
    assert list(troubles(node)) == ["device_per_rank"]
    assert "a node for 5 ranks sees 4 GPUs" in outcomes["device_per_rank"].findings[0].reason
