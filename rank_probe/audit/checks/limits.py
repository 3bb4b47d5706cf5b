"""Limits: memory, shared and locked memory, and open files, beside what the ranks may want."""

from collections.abc import Iterator
from typing import Final

from rank_probe.audit.checks.findings import (
    AuditFinding,
    binary,
    count,
    fail,
    not_checked,
    ok,
    ranks,
    warn,
)
from rank_probe.audit.checks.launch import Launch, grouped
from rank_probe.audit.readings import devices

MIB: Final = 2**20
GIB: Final = 2**30
# Rules of thumb; docs/audit.md says where they come from.
SHARED_PER_RANK: Final = 32 * MIB
SHARED_PER_WORKER: Final = 64 * MIB
LOCKED_FAIL: Final = 64 * MIB
LOCKED_WARN: Final = GIB
MEMORY_FAIL_PER_RANK: Final = GIB
MEMORY_WARN_PER_RANK: Final = 2 * GIB
MEMORY_WARN_PER_WORKER: Final = GIB // 2
# Open files: libraries, devices and data files.
FILES_OF_ANY_RANK: Final = 256
# The store has a connection to each rank, and so has each rank in a group of gloo.
FILES_PER_RANK_OF_THE_JOB: Final = 1
# The workers' tensors are passed as files, two batches in advance.
FILES_PER_WORKER: Final = 128


def shared_memory(launch: Launch) -> Iterator[AuditFinding]:
    """Compare /dev/shm with what NCCL and the loader workers put there."""
    known = [group for group in launch.containers() if group[0].shared_memory_bytes is not None]
    for container in known:
        size = min(facts.shared_memory_bytes or 0 for facts in container)
        free = min(facts.shared_memory_free_bytes or 0 for facts in container)
        together = launch.count(container)
        wanted = together * (SHARED_PER_RANK + launch.workers * SHARED_PER_WORKER)
        if free < wanted:
            finding = fail if free < wanted / 2 else warn
            yield finding(
                f"/dev/shm on {container[0].node} has {binary(free)} free of {binary(size)}; "
                f"{launch.told(container)} may want {binary(wanted)}",
                "docker run --shm-size or --ipc=host; in Kubernetes an emptyDir with medium: "
                "Memory at /dev/shm; remove what crashed jobs left there",
            )
    if not known:
        yield not_checked("there is no /dev/shm here")
    yield ok("/dev/shm is large enough")


def locked_memory(launch: Launch) -> Iterator[AuditFinding]:
    """Look at RLIMIT_MEMLOCK, where something locks memory: InfiniBand or pinned batches."""
    uses_ports = any(
        facts.ports and facts.settings.get("NCCL_IB_DISABLE", "0") != "1" for facts in launch.facts
    )
    pins = launch.pin_memory and any(devices.has_gpus(facts) for facts in launch.facts)
    if not uses_ports and not pins:
        yield not_checked("no InfiniBand port here, and no --pin-memory: nothing locks memory")
        return
    for limit in sorted({facts.locked_bytes or 0 for facts in launch.facts}):
        if limit >= LOCKED_WARN or (limit >= LOCKED_FAIL and not uses_ports):
            continue
        who = ranks(facts.rank for facts in launch.facts if facts.locked_bytes == limit)
        finding = fail if uses_ports and limit < LOCKED_FAIL else warn
        purpose = (
            "NCCL registers its buffers with InfiniBand" if uses_ports else "batches are pinned"
        )
        yield finding(
            f"{'this process' if launch.alone else who} may lock {binary(limit)} of memory "
            f"(ulimit -l), and {purpose}",
            "docker run --ulimit memlock=-1, the capability IPC_LOCK, LimitMEMLOCK=infinity in the "
            "unit of the launcher or of slurmd, or limits.conf",
        )
    yield ok("enough memory may be locked")


def memory_limit(launch: Launch) -> Iterator[AuditFinding]:
    """Compare the memory that is left on the node, and in its control group, with the ranks."""
    known = [group for group in launch.containers() if group[0].memory_free_bytes is not None]
    for container in known:
        free = min(facts.memory_free_bytes or 0 for facts in container)
        limit = container[0].memory_limit_bytes
        together = launch.count(container)
        wanted = together * (MEMORY_WARN_PER_RANK + launch.workers * MEMORY_WARN_PER_WORKER)
        if free < wanted:
            of = f" of the control group's {binary(limit)}" if limit is not None else ""
            finding = fail if free < together * MEMORY_FAIL_PER_RANK else warn
            yield finding(
                f"{container[0].node} has {binary(free)} of memory left{of}; "
                f"{launch.told(container)} may want {binary(wanted)}",
                "raise the memory limit of the pod, container or job, or start fewer workers: a "
                "rank that is killed for memory hangs the others",
            )
    if not known:
        yield not_checked("/proc/meminfo cannot be read")
    yield ok("there is memory enough for the ranks and their workers")


def open_files(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks whose RLIMIT_NOFILE is below what the job may open."""
    wanted = (
        FILES_OF_ANY_RANK
        + FILES_PER_RANK_OF_THE_JOB * launch.world_size
        + FILES_PER_WORKER * launch.workers
    )
    jobs = count(launch.world_size, "rank")
    if launch.workers:
        jobs += f" with {count(launch.workers, 'loader worker')} each"
    limited = [facts for facts in launch.facts if facts.open_files is not None]
    for limit, bound in grouped(limited, lambda facts: facts.open_files or 0).items():
        if limit >= wanted:
            continue
        most = max(facts.most_open_files or 0 for facts in bound)
        who = "this process" if launch.alone else ranks(facts.rank for facts in bound)
        finding = fail if limit < FILES_OF_ANY_RANK else warn
        yield finding(
            f"{who} may open {limit} files (ulimit -n), and may want {wanted} in a job of {jobs}",
            f"ulimit -n {wanted} in the job script"
            if most >= wanted
            else "raise the hard limit: LimitNOFILE= of the launcher or slurmd, docker run "
            "--ulimit nofile, or limits.conf",
        )
    yield ok(f"each rank may open {wanted} files or more")
