"""CPUs and memory: where ranks are bound, how near their GPU, and what they may share and lock."""

from collections.abc import Iterator
from typing import Final

from rank_probe.audit.devices import gpus_by_uuid, visible_gpus, without_gpus
from rank_probe.audit.findings import (
    AuditFinding,
    Launch,
    binary,
    count,
    fail,
    grouped,
    majority,
    not_checked,
    ok,
    ranks,
    warn,
)

BIND: Final = (
    "bind each rank to CPUs of its own near its GPU: srun --cpu-bind, numactl, or taskset in the "
    "wrapper that starts it"
)
# The least share of a bound rank's CPUs that should be near its GPU.
LEAST_NEAR: Final = 0.5
# Rules of thumb: what NCCL needs in a common job.
SHARED_PER_RANK: Final = 32 * 2**20
LOCKED_FAIL: Final = 64 * 2**20
LOCKED_WARN: Final = 2**30


def affinity(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks that are bound to one and the same CPU, or to fewer than the others."""
    for machine in launch.machines():
        single = [one for one in machine if len(one.cpus) == 1 and one.cpus_of_node != 1]
        for together in grouped(single, lambda facts: facts.cpus).values():
            if len(together) > 1:
                yield fail(
                    f"{ranks(facts.rank for facts in together)} on {together[0].node} are all "
                    f"bound to CPU {together[0].cpus[0]}",
                    BIND,
                )
        sizes = {facts.rank: len(facts.cpus) for facts in machine}
        usual = majority(sizes) or max(sizes.values())
        for size, bound in grouped(machine, lambda facts: len(facts.cpus)).items():
            if size < usual:
                yield warn(
                    f"{ranks(facts.rank for facts in bound)} on {machine[0].node} may use "
                    f"{count(size, 'CPU')}, other ranks there {usual}",
                    "give all ranks equally many CPUs: look for taskset, numactl and cpusets that "
                    "bind only some",
                )
    fewest = min(len(facts.cpus) for facts in launch.facts)
    yield ok(f"each rank may use {count(fewest, 'CPU')} or more")


def numa(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks that are bound to CPUs far from their GPU."""
    if nothing := without_gpus(launch):
        yield nothing
        return
    if not any(gpu.cpus for facts in launch.facts for gpu in facts.gpus):
        problem = next((facts.nvml_problem for facts in launch.facts if facts.nvml_problem), "")
        yield not_checked(problem or "NVML does not say which CPUs are near a GPU")
        return
    unbound = 0
    for machine in launch.machines():
        seen = visible_gpus(machine)
        for facts in machine:
            gpus = gpus_by_uuid([facts])
            used = seen[facts.rank].visible if launch.alone else seen[facts.rank].used
            near = {cpu for uuid in used if uuid in gpus for cpu in gpus[uuid].cpus}
            if not near:
                continue
            share = len(near.intersection(facts.cpus)) / len(facts.cpus)
            if len(facts.cpus) >= facts.cpus_of_node:
                unbound += 1
            elif share < LEAST_NEAR:
                finding = warn if share else fail
                yield finding(
                    f"rank {facts.rank} ({facts.node}) uses "
                    f"{', '.join(str(gpus.get(uuid, uuid)) for uuid in used)}, but "
                    f"{f'only {share:.0%}' if share else 'none'} of its {len(facts.cpus)} CPUs are "
                    "near it: its copies cross to the other socket",
                    BIND,
                )
    note = f"; {unbound} ranks are not bound to CPUs" if unbound and not launch.alone else ""
    yield ok(f"no rank is bound to CPUs far from its GPU{note}")


def shared_memory(launch: Launch) -> Iterator[AuditFinding]:
    """Compare /dev/shm with what NCCL puts there."""
    known = [facts for facts in launch.facts if facts.shared_memory_bytes is not None]
    for together in grouped(known, lambda facts: (facts.machine, facts.container)).values():
        size = min(facts.shared_memory_bytes or 0 for facts in together)
        free = min(facts.shared_memory_free_bytes or 0 for facts in together)
        number = launch.ranks_here if launch.alone else len(together)
        wanted = number * SHARED_PER_RANK
        if free < wanted:
            finding = fail if free < wanted / 2 else warn
            yield finding(
                f"/dev/shm on {together[0].node} has {binary(free)} free of {binary(size)}; "
                f"{count(number, 'rank')} may want {binary(wanted)}",
                "docker run --shm-size or --ipc=host; in Kubernetes an emptyDir with medium: "
                "Memory at /dev/shm; remove what crashed jobs left there",
            )
    if not known:
        yield not_checked("there is no /dev/shm here")
    yield ok("/dev/shm is large enough")


def locked_memory(launch: Launch) -> Iterator[AuditFinding]:
    """Check RLIMIT_MEMLOCK if there is InfiniBand, for which NCCL locks memory."""
    if not any(
        facts.ports and facts.settings.get("NCCL_IB_DISABLE", "0") != "1" for facts in launch.facts
    ):
        yield not_checked("no InfiniBand port here: nothing locks memory")
        return
    for limit in sorted({facts.locked_bytes or 0 for facts in launch.facts}):
        if limit >= LOCKED_WARN:
            continue
        who = ranks(facts.rank for facts in launch.facts if facts.locked_bytes == limit)
        finding = fail if limit < LOCKED_FAIL else warn
        yield finding(
            f"{'this process' if launch.alone else who} may lock {binary(limit)} of memory "
            "(ulimit -l), and NCCL registers its buffers with InfiniBand",
            "docker run --ulimit memlock=-1, the capability IPC_LOCK, LimitMEMLOCK=infinity in the "
            "unit of the launcher or of slurmd, or limits.conf",
        )
    yield ok("enough memory may be locked")
