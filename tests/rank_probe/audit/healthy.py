"""A healthy launch, for tests to spoil: eight ranks on two nodes of four GPUs."""

import dataclasses
from typing import Any

from rank_probe.audit.facts import Facts, GpuFacts, Interface, Port
from rank_probe.audit.findings import AuditStatus, Launch, Outcome
from rank_probe.audit.report import audit

GIB = 2**30
HERE = 4


def uuid(node: int, index: int) -> str:
    """Return the name of a GPU."""
    return f"GPU-{node}-{index}"


def gpus(node: int) -> tuple[GpuFacts, ...]:
    """Return the GPUs of *node*, the first two on one socket and the others on the other."""
    return tuple(
        GpuFacts(
            index=index,
            uuid=uuid(node, index),
            model="H100",
            cpus=tuple(range(16)) if index < 2 else tuple(range(16, 32)),
        )
        for index in range(HERE)
    )


def facts(rank: int, **changes: Any) -> Facts:
    """Return those of *rank* in a healthy launch, with *changes*."""
    node, local_rank = divmod(rank, HERE)
    first_cpu = local_rank * 8
    return dataclasses.replace(
        Facts(
            rank=rank,
            local_rank=local_rank,
            node=f"node-{node}",
            machine=f"machine-{node}",
            container="0::/job",
            compared={"NCCL_DEBUG": "WARN"},
            versions={"python": "3.11.7", "torch": "2.13.0", "nccl": "2.27.3", "driver": "580.1"},
            cpus=tuple(range(first_cpu, first_cpu + 8)),
            cpus_of_node=32,
            shared_memory_bytes=64 * GIB,
            shared_memory_free_bytes=64 * GIB,
            locked_bytes=2**63,
            device_files=HERE,
            gpus=gpus(node),
            interface_names=("eth0", "lo"),
            interfaces=(Interface("eth0", 9000, False, "the default route"),),
            ports=tuple(Port(f"mlx5_{i}", "1", "InfiniBand", True, 400.0) for i in range(2)),
        ),
        **changes,
    )


def launch(changes: dict[int, dict[str, Any]] | None = None, **of_launch: Any) -> Launch:
    """Return a healthy launch with *changes* of the facts, by rank, and of the launch itself."""
    changes = changes or {}
    return Launch(
        [facts(rank, **changes.get(rank, {})) for rank in range(2 * HERE)],
        **{"world_size": 2 * HERE, **of_launch},
    )


def settings(**variables: str) -> dict[str, Any]:
    """Return the change of a rank whose *variables* differ."""
    return {"settings": variables}


def troubles(audited: Launch) -> dict[str, Outcome]:
    """Return what failed or warned, by check."""
    return {
        one.check: one
        for one in audit(audited)
        if one.status in (AuditStatus.FAIL, AuditStatus.WARN)
    }
