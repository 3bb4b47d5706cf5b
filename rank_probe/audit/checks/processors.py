"""CPUs: where ranks are bound, how near their GPU, and how many for threads and workers."""

from collections.abc import Iterator, Sequence

from rank_probe.audit.checks.devices import without_gpus
from rank_probe.audit.checks.findings import AuditFinding, count, fail, not_checked, ok, ranks, warn
from rank_probe.audit.checks.launch import Launch, grouped, majority
from rank_probe.audit.readings import devices
from rank_probe.audit.readings.facts import Facts

THREADS = "OMP_NUM_THREADS"
BIND = (
    "bind each rank to CPUs of its own near its GPU: srun --cpu-bind, numactl, or taskset in the "
    "wrapper that starts it"
)
# Of a bound rank's CPUs, those that are next to its GPU.
LEAST_NEAR = 0.5
# Beyond this, threads take turns so often that all ranks are late at random.
MOST_CROWDED = 2


def affinity(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks that are bound to one and the same CPU, or to fewer than the others."""
    for machine in launch.machines():
        yield from _same_cpu(machine)
        sizes = {facts.rank: len(facts.cpus) for facts in machine}
        usual = majority(sizes) or max(sizes.values())
        for size, bound in grouped(machine, lambda facts: len(facts.cpus)).items():
            who = ranks(facts.rank for facts in bound)
            if size == 1 and launch.workers:
                yield fail(
                    f"{who} on {machine[0].node} may use 1 CPU, for the training thread and "
                    f"{launch.workers} loader workers each",
                    BIND,
                )
            elif size < usual:
                yield warn(
                    f"{who} on {machine[0].node} may use {count(size, 'CPU')}, other ranks there "
                    f"{usual}",
                    "give all ranks equally many CPUs: look for taskset, numactl and cpusets that "
                    "bind only some",
                )
    fewest = min(len(facts.cpus) for facts in launch.facts)
    yield ok(f"each rank may use {count(fewest, 'CPU')} or more")


def numa(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks that are bound to CPUs far from their GPU."""
    nothing = without_gpus(launch) or _no_locality(launch)
    if nothing:
        yield nothing
        return
    unbound = 0
    for machine in launch.machines():
        seen = devices.seen(machine)
        for facts in machine:
            gpus = devices.by_uuid(facts)
            used = seen[facts.rank].visible if launch.alone else seen[facts.rank].used
            near = {cpu for uuid in used if uuid in gpus for cpu in gpus[uuid].cpus}
            if not near:
                continue
            if len(facts.cpus) >= facts.cpus_of_node:
                unbound += 1
                continue
            yield from _distance(facts, near, used)
    note = f"; {unbound} ranks are not bound to CPUs" if unbound and not launch.alone else ""
    yield ok(f"no rank is bound to CPUs far from its GPU{note}")


def cpus(launch: Launch) -> Iterator[AuditFinding]:
    """Compare the threads and loader workers of a node's ranks with their CPUs."""
    yield from _unset_threads(launch)
    for container in launch.containers():
        available = len({cpu for facts in container for cpu in facts.cpus})
        if available == 1 and container[0].cpus_of_node > 1 and len(container) > 1:
            continue  # They are bound to one CPU, which another check says.
        yield from _crowd(launch, container, available, count(available, "CPU"))
    yield ok("there are CPUs enough for the ranks' threads and workers")


def cpu_quota(launch: Launch) -> Iterator[AuditFinding]:
    """Compare the threads and workers with the CPU time that a control group allows."""
    limited = [group for group in launch.containers() if group[0].cpu_quota is not None]
    for container in limited:
        quota = min(facts.cpu_quota for facts in container if facts.cpu_quota is not None)
        if quota < launch.count(container):
            yield fail(
                f"the control group on {container[0].node} allows {count(quota, 'CPU')} for "
                f"{count(launch.count(container), 'rank')}",
                "raise the CPU limit of the pod, container or job to at least a CPU for each rank, "
                "or remove it: throttled ranks are late at random",
            )
        else:
            yield from _crowd(launch, container, quota, f"a CPU quota of {quota:g}")
    yield ok("no quota is below what the ranks need" if limited else "no control group has a quota")


def threads_of(facts: Facts) -> int | None:
    """Return how many threads a rank computes with; None if nothing says it."""
    first = facts.settings.get(THREADS, "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and len(first) < 6 and int(first) else None


def _same_cpu(machine: Sequence[Facts]) -> Iterator[AuditFinding]:
    bound = [facts for facts in machine if len(facts.cpus) == 1]
    if machine[0].cpus_of_node == 1:
        return
    for together in grouped(bound, lambda facts: facts.cpus).values():
        if len(together) > 1:
            yield fail(
                f"{ranks(facts.rank for facts in together)} on {together[0].node} are all bound to "
                f"CPU {together[0].cpus[0]}",
                BIND,
            )


def _no_locality(launch: Launch) -> AuditFinding | None:
    problem = next((facts.nvml_problem for facts in launch.facts if facts.nvml_problem), "")
    if not any(gpu.cpus for facts in launch.facts for gpu in facts.gpus):
        return not_checked(problem or "NVML does not say which CPUs are near a GPU")
    return None


def _distance(facts: Facts, near: set[int], used: Sequence[str]) -> Iterator[AuditFinding]:
    share = len(near.intersection(facts.cpus)) / len(facts.cpus)
    if share >= LEAST_NEAR:
        return
    called = devices.names([facts])
    gpus = ", ".join(called.get(uuid, uuid) for uuid in used)
    how_many = "none" if not share else f"only {share:.0%}"
    finding = warn if share else fail
    yield finding(
        f"rank {facts.rank} ({facts.node}) uses {gpus}, but {how_many} of its {len(facts.cpus)} "
        "CPUs are near it: its copies cross to the other socket",
        BIND,
    )


def _unset_threads(launch: Launch) -> Iterator[AuditFinding]:
    """Yield the ranks that share a node and would each start a thread for every CPU."""
    unset = [
        facts
        for container in launch.containers()
        for facts in container
        if len(container) > 1 and len(facts.cpus) > 1 and threads_of(facts) is None
    ]
    if unset:
        yield warn(
            f"{THREADS} is unset on {ranks(facts.rank for facts in unset)}: each starts a thread "
            "for each CPU that it may use",
            f"set {THREADS} to the CPUs of a rank without its workers, as torchrun does with 1",
        )


def _crowd(
    launch: Launch, container: Sequence[Facts], available: float, shown: str
) -> Iterator[AuditFinding]:
    """Yield whether the threads and workers of *container* are more than *available* CPUs."""
    together = launch.count(container)
    threads = max(threads_of(facts) or 1 for facts in container)
    pinning = int(launch.pin_memory)
    needed = together * (threads + launch.workers + pinning)
    if needed <= available:
        return
    parts = [count(threads, "thread")]
    parts += [count(launch.workers, "loader worker")] * bool(launch.workers)
    parts += ["1 pinning thread"] * pinning
    finding = fail if needed > MOST_CROWDED * available else warn
    yield finding(
        f"{count(together, 'rank')} on {container[0].node}, with {' and '.join(parts)} each, may "
        f"keep {needed} CPUs busy and have {shown}",
        f"lower {THREADS} or the number of loader workers, start fewer ranks, or give the job "
        "more CPUs",
    )
