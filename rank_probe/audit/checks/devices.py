"""One process for each GPU, and the same order of GPUs for all ranks of a node."""

from collections.abc import Iterator, Sequence

from rank_probe.audit.checks.findings import (
    AuditFinding,
    count,
    fail,
    names,
    not_checked,
    ok,
    ranks,
    warn,
)
from rank_probe.audit.checks.launch import Launch, grouped
from rank_probe.audit.readings import devices
from rank_probe.audit.readings.devices import BUS_ORDER, ORDER, VISIBLE
from rank_probe.audit.readings.facts import Facts


def without_gpus(launch: Launch) -> AuditFinding | None:
    """Return why nothing about GPUs can be checked; None if some rank may use one."""
    if not any(devices.has_gpus(facts) for facts in launch.facts):
        return not_checked("no rank sees a GPU" if not launch.alone else "this node has no GPU")
    if all(devices.hides_all(facts) for facts in launch.facts):
        return not_checked(f"{VISIBLE} hides all GPUs from every rank, as for a job on CPUs")
    return None


def device_per_rank(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks that see no GPU, or share one."""
    nothing = without_gpus(launch)
    if nothing:
        yield nothing
        return
    for machine in launch.machines():
        seen = devices.seen(machine)
        yield from _blind(launch, machine, seen)
        if not launch.alone:
            yield from _shared(machine, seen)
    if launch.alone:
        here = len(devices.seen(launch.facts)[launch.facts[0].rank].visible)
        if launch.ranks_here > here > 0:
            yield _too_few(launch.facts[0], f"a node for {launch.ranks_here} ranks", here)
        yield ok(f"{count(here, 'GPU')} for {count(launch.ranks_here, 'rank')}")
    yield ok(f"{len(launch.facts)} ranks have a GPU each")


def device_order(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks for which the number of a GPU may mean another GPU than for others."""
    nothing = without_gpus(launch)
    if nothing:
        yield nothing
        return
    for machine in launch.machines():
        orders = grouped(machine, lambda facts: facts.settings.get(ORDER, "unset"))
        if len(orders) > 1:
            told = [f"{value} on {ranks(_numbers(who))}" for value, who in orders.items()]
            yield fail(
                f"{ORDER} differs on {machine[0].node}: {', '.join(told)}",
                f"set {ORDER}={BUS_ORDER} for all ranks: a number then means the same GPU to all",
            )
        yield from _different_orders(machine)
        by_number = [facts for facts in machine if _by_number(facts)]
        if by_number:
            yield warn(
                f"{VISIBLE} names GPUs by number without {ORDER}={BUS_ORDER} on "
                f"{ranks(_numbers(by_number))} of {machine[0].node}: CUDA counts the fastest GPU "
                "first, nvidia-smi by bus",
                f"set {ORDER}={BUS_ORDER}, or name the GPUs by UUID",
            )
    yield ok("a number means the same GPU to all ranks of a node")


def _blind(
    launch: Launch, machine: Sequence[Facts], seen: dict[int, devices.VisibleGpus]
) -> Iterator[AuditFinding]:
    for facts in machine:
        mine = seen[facts.rank]
        who = facts.node if launch.alone else f"rank {facts.rank} ({facts.node})"
        if not mine.visible:
            hidden = VISIBLE in facts.settings
            why = f"{VISIBLE}={facts.settings.get(VISIBLE)}" if hidden else "the node shows none"
            yield fail(
                f"{who} sees no GPU: {why}",
                "give each rank one GPU, with --gpus-per-task, the GPUs of the pod's resources, or "
                f"{VISIBLE}",
            )
        elif not mine.used:
            yield _too_few(facts, f"{who}, with local rank {facts.local_rank},", len(mine.visible))


def _too_few(facts: Facts, who: str, seen: int) -> AuditFinding:
    visible = facts.settings.get(VISIBLE)
    shown = f" ({VISIBLE}={visible})" if visible is not None else ""
    return fail(
        f"{who} sees {count(seen, 'GPU')}{shown} on {facts.node}: too few",
        "start as many ranks per node as a rank sees GPUs, such as with --nproc-per-node gpu",
    )


def _shared(
    machine: Sequence[Facts], seen: dict[int, devices.VisibleGpus]
) -> Iterator[AuditFinding]:
    called = devices.names(machine)
    users: dict[tuple[str, str], list[int]] = {}
    for facts in machine:
        for gpu in seen[facts.rank].used:
            # Without NVML a number may be another GPU in another container.
            where = "" if facts.gpus else facts.container
            users.setdefault((where, gpu), []).append(facts.rank)
    for (_, gpu), who in users.items():
        if len(who) > 1:
            yield fail(
                f"{ranks(who)} use the same {called.get(gpu, f'GPU {gpu}')} on {machine[0].node}",
                f"give each rank a GPU of its own: show all to all ranks and let each take the one "
                f"of its LOCAL_RANK, or set {VISIBLE} for each rank",
            )


def _different_orders(machine: Sequence[Facts]) -> Iterator[AuditFinding]:
    """Yield whose visible GPUs are those of others in another order."""
    seen = devices.seen(machine)
    first: dict[frozenset[str], tuple[int, tuple[str, ...]]] = {}
    for facts in machine:
        mine = seen[facts.rank].visible
        other, theirs = first.setdefault(frozenset(mine), (facts.rank, mine))
        if theirs != mine:
            yield fail(
                f"{ranks([other, facts.rank])} on {machine[0].node} see the same GPUs in different "
                f"orders: {_numbered(theirs, facts)}, and {_numbered(mine, facts)}",
                f"set the same {VISIBLE} and {ORDER}={BUS_ORDER} for all ranks of a node",
            )


def _numbered(gpus: Sequence[str], facts: Facts) -> str:
    """Return NVML's numbers of *gpus*, which are shorter than their UUIDs."""
    known = devices.by_uuid(facts)
    return names([str(known[gpu].index) if gpu in known else gpu for gpu in gpus])


def _by_number(facts: Facts) -> bool:
    """Whether numbers name GPUs that CUDA might count in another order than their bus."""
    entries = facts.settings.get(VISIBLE, "").split(",")
    same_model = len({gpu.model for gpu in facts.gpus}) <= 1  # None is known without NVML.
    return (
        entries[0].strip().isdecimal() and facts.settings.get(ORDER) != BUS_ORDER and not same_model
    )


def _numbers(facts: Sequence[Facts]) -> list[int]:
    return [one.rank for one in facts]
