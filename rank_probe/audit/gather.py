"""Reads the facts of this process and its node; of its variables, without their secrets."""

import contextlib
import hashlib
import os
import platform
import re
import resource
from collections.abc import Mapping
from importlib import metadata
from typing import Final

from rank_probe.audit import devices, network
from rank_probe.audit.facts import HIDDEN, Facts, NodeMounts, text_of
from rank_probe.process import runtime
from rank_probe.process.runtime import COMPARED_PREFIXES, NOT_COMPARED
from rank_probe.process.small_files import cpu_list, names_in
from rank_probe.version import __version__
from rank_probe.wire.text import printable

UNLIMITED: Final = 2**63
CAP_IPC_LOCK: Final = 14  # linux/capability.h
# What the checks look at in each rank's own environment.
LOOKED_AT: Final = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
)
# The check device_order reports more about this variable than that it differs.
_TOLD_ELSEWHERE: Final = frozenset({"CUDA_DEVICE_ORDER"})
MOST_VARIABLES: Final = 256
MOST_CHARACTERS: Final = 120
_SECRET_NAME: Final = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|AUTH|(?:^|_)KEY(?:_|$)|COMM_ID")
_SECRET_VALUE: Final = re.compile(r"://[^/@\s]*@")


def facts(
    rank: int, local_rank: int, environment: Mapping[str, str], mounts: NodeMounts, with_torch: bool
) -> Facts:
    """Return what this process knows; *with_torch* imports torch for the versions it brings."""
    seen, nvml_problem = devices.read_gpus()
    shared, shared_free = _shared_memory(mounts)
    node = text_of(mounts.procfs / "sys/kernel/hostname") or os.uname().nodename
    return Facts(
        rank=rank,
        local_rank=local_rank,
        node=node,
        machine=text_of(mounts.procfs / "sys/kernel/random/boot_id") or node,
        container=_control_group(mounts),
        compared=compared(environment),
        settings={name: environment[name] for name in LOOKED_AT if name in environment},
        versions=_versions(with_torch)
        | {
            "driver": runtime.driver_version(mounts.procfs / "driver/nvidia/version"),
            "gpu model": ", ".join(sorted({gpu.model for gpu in seen})),
        },
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        cpus_of_node=len(cpu_list(text_of(mounts.sysfs / "devices/system/cpu/online"))),
        shared_memory_bytes=shared,
        shared_memory_free_bytes=shared_free,
        locked_bytes=_lockable_bytes(mounts),
        device_files=devices.device_files(mounts),
        nvml_problem=nvml_problem,
        gpus=seen,
        interface_names=tuple(names_in(mounts.sysfs / "class/net")[: network.MOST_INTERFACES]),
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
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit


def _control_group(mounts: NodeMounts) -> str:
    """Return a name that the processes of one control group share.

    It includes the namespace, because in a container every path may be /.
    """
    try:
        namespace = str((mounts.procfs / "self/ns/cgroup").readlink())
    except OSError:
        namespace = ""
    return f"{namespace} {text_of(mounts.procfs / 'self/cgroup')}"


def compared(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that should be the same on every rank."""
    names = sorted(
        name
        for name in environment
        if name.startswith(COMPARED_PREFIXES) and name not in NOT_COMPARED | _TOLD_ELSEWHERE
    )
    return {name: shown(name, environment[name]) for name in names[:MOST_VARIABLES]}


def shown(name: str, value: str) -> str:
    """Return *value*; only a digest if it may be secret, cut and with a digest if it is long."""
    digest = hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:8]
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value):
        return f"{HIDDEN}{digest}"
    readable = printable(value)
    if len(readable) > MOST_CHARACTERS or readable != value:
        return f"{readable[:MOST_CHARACTERS]}... ({digest})"
    return readable
