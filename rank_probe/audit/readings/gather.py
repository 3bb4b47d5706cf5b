"""Reads the facts of this process and its node."""

import contextlib
import os
import platform
import re
import resource
from collections.abc import Mapping
from importlib import metadata
from typing import Final

from rank_probe.audit.readings import control_groups, gpus, network
from rank_probe.audit.readings.facts import Facts
from rank_probe.audit.readings.files import NodeMounts, text_of
from rank_probe.audit.readings.variables import compared, looked_at
from rank_probe.process import runtime
from rank_probe.process.cpus import cpu_list
from rank_probe.version import __version__

UNLIMITED: Final = 2**63
CAP_IPC_LOCK: Final = 14  # linux/capability.h


def facts(
    rank: int, local_rank: int, environment: Mapping[str, str], mounts: NodeMounts, with_torch: bool
) -> Facts:
    """Return what this process knows; *with_torch* imports torch for the versions it brings."""
    seen, nvml_problem = gpus.read()
    limit, left = control_groups.memory(mounts)
    shared, shared_free = _shared_memory(mounts)
    files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    node = text_of(mounts.procfs / "sys/kernel/hostname") or os.uname().nodename
    return Facts(
        rank=rank,
        local_rank=local_rank,
        node=node,
        machine=text_of(mounts.procfs / "sys/kernel/random/boot_id") or node,
        container=control_groups.key(mounts),
        compared=compared(environment),
        settings=looked_at(environment),
        versions=_versions(with_torch)
        | {
            "driver": runtime.driver_version(mounts.procfs / "driver/nvidia/version"),
            "gpu model": ", ".join(sorted({gpu.model for gpu in seen})),
        },
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        cpus_of_node=len(cpu_list(text_of(mounts.sysfs / "devices/system/cpu/online"))),
        cpu_quota=control_groups.cpu_quota(mounts),
        memory_free_bytes=_least(left, _available_bytes(mounts)),
        memory_limit_bytes=limit,
        shared_memory_bytes=shared,
        shared_memory_free_bytes=shared_free,
        open_files=_bounded(files),
        most_open_files=_bounded(most_files),
        locked_bytes=_lockable_bytes(mounts),
        device_files=gpus.device_files(mounts),
        nvml_problem=nvml_problem,
        gpus=seen,
        interface_names=network.interface_names(mounts),
        interfaces=tuple(network.interfaces(mounts, environment)),
        ports=tuple(network.ports(mounts)),
    )


def _versions(with_torch: bool) -> dict[str, str]:
    """Return the versions of the libraries; the NCCL that torch brings only *with_torch*."""
    versions = {"python": platform.python_version(), "probe": __version__}
    with contextlib.suppress(metadata.PackageNotFoundError):
        versions["torch"] = metadata.version("torch")
    if not with_torch:
        return versions
    import torch

    versions["torch"] = str(torch.__version__)
    versions["cuda"] = str(torch.version.cuda or "")
    if torch.distributed.is_nccl_available():
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return versions


def _shared_memory(mounts: NodeMounts) -> tuple[int | None, int | None]:
    """Return size and free bytes of /dev/shm."""
    try:
        status = os.statvfs(mounts.devices / "shm")
    except OSError:
        return None, None
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def _lockable_bytes(mounts: NodeMounts) -> int:
    """Return RLIMIT_MEMLOCK, which does not bind a process with CAP_IPC_LOCK."""
    found = re.search(r"^CapEff:\s+([0-9a-f]{1,16})$", text_of(mounts.procfs / "self/status"), re.M)
    if found and int(found[1], 16) >> CAP_IPC_LOCK & 1:
        return UNLIMITED
    return _bounded(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])


def _available_bytes(mounts: NodeMounts) -> int | None:
    for line in text_of(mounts.procfs / "meminfo").splitlines():
        name, *columns = line.split()
        if name == "MemAvailable:" and columns and columns[0].isdecimal():
            return int(columns[0]) * 1024
    return None


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _bounded(limit: int) -> int:
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit
