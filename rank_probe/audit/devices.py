"""The GPUs of each rank: from NVML and CUDA_VISIBLE_DEVICES, one for each, in one order for all."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from rank_probe.audit.facts import Facts, GpuFacts, NodeMounts
from rank_probe.audit.findings import (
    AuditFinding,
    Launch,
    comma_list,
    count,
    fail,
    grouped,
    not_checked,
    ok,
    ranks,
    warn,
)
from rank_probe.process.fabric import fabric_trouble
from rank_probe.process.small_files import MOST_CPUS, names_in

NVML_FAILS: Final = "NVML fails"
WORD_BITS: Final = 64
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
LOG: Final = "look at the log of the fabric manager: journalctl -u nvidia-fabricmanager"
BUS_ORDER = "PCI_BUS_ID"


def device_files(mounts: NodeMounts) -> int:
    """Return how many GPUs this process could open: /dev/nvidia0 and so on."""
    return sum(re.fullmatch("nvidia[0-9]+", name) is not None for name in names_in(mounts.devices))


def read_gpus() -> tuple[tuple[GpuFacts, ...], str]:
    """Return the GPUs; without them, why NVML has none. May take long: it calls the driver."""
    try:
        import pynvml
    except ImportError:
        return (), "pynvml is not installed (pip install nvidia-ml-py)"
    try:
        pynvml.nvmlInit()
        gpus = tuple(_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        return gpus, "" if gpus else "NVML shows no GPU"
    except pynvml.NVMLError_LibraryNotFound:
        return (), "NVML is not installed"
    except pynvml.NVMLError as error:
        return (), f"{NVML_FAILS}: {error}"
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(pynvml: Any, index: int) -> GpuFacts:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    words: Sequence[int] = ()
    with contextlib.suppress(pynvml.NVMLError):  # NVML may not know which CPUs are near.
        words = pynvml.nvmlDeviceGetCpuAffinity(handle, MOST_CPUS // WORD_BITS)
    why = ""
    with contextlib.suppress(pynvml.NVMLError, AttributeError):  # pynvml may be too old.
        why = fabric_trouble(handle, pynvml)
    return GpuFacts(
        index=index,
        uuid=_string(pynvml.nvmlDeviceGetUUID(handle)),
        model=_string(pynvml.nvmlDeviceGetName(handle)),
        cpus=tuple(
            cpu
            for cpu in range(len(words) * WORD_BITS)
            if words[cpu // WORD_BITS] >> cpu % WORD_BITS & 1
        ),
        fabric=why,
    )


def _string(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """The GPUs that a rank sees, in CUDA's order, and those of them that it uses.

    Each is a UUID or, without NVML, an entry of CUDA_VISIBLE_DEVICES or an index.
    """

    visible: tuple[str, ...]
    used: tuple[str, ...]


def visible_gpus(machine: Sequence[Facts]) -> dict[int, VisibleGpus]:
    """Return what each rank of *machine* sees and uses.

    Launchers do one of three things: give each rank one GPU, give each rank GPUs of its own, or
    show all GPUs to all ranks, which then take the one with the number of their local rank.
    """
    visible = {facts.rank: _visible(facts) for facts in machine}
    total = sum(len(gpus) for gpus in visible.values())
    apart = len({gpu for gpus in visible.values() for gpu in gpus}) == total
    return {
        facts.rank: VisibleGpus(visible[facts.rank], _used(visible[facts.rank], facts, apart))
        for facts in machine
    }


def gpus_by_uuid(machine: Sequence[Facts]) -> dict[str, GpuFacts]:
    """Return the GPUs that NVML shows to the ranks of *machine*."""
    return {gpu.uuid: gpu for facts in machine for gpu in facts.gpus}


def _used(visible: tuple[str, ...], facts: Facts, apart: bool) -> tuple[str, ...]:
    if len(visible) == 1 or (apart and VISIBLE in facts.settings):
        return visible
    return visible[facts.local_rank : facts.local_rank + 1]


def _visible(facts: Facts) -> tuple[str, ...]:
    uuids = [gpu.uuid for gpu in facts.gpus]
    everything = uuids or [str(number) for number in range(facts.device_files)]
    if VISIBLE not in facts.settings:
        return tuple(everything)
    found: list[str] = []
    for entry in _entries(facts):
        if not entry.isdecimal():  # A UUID or a prefix of one, or a MIG device.
            full = [uuid for uuid in uuids if uuid.startswith(entry)]
            found.append(full[0] if len(full) == 1 else entry)
        elif everything and int(entry) >= len(everything):
            break  # Like CUDA, ignore the first invalid index and everything after it.
        else:
            found.append(everything[int(entry)] if everything else entry)
    return tuple(found)


def _entries(facts: Facts) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES before the first malformed one."""
    every = (entry.strip() for entry in facts.settings.get(VISIBLE, "").split(","))
    return list(takewhile(lambda one: one.isdecimal() or one.startswith(("GPU-", "MIG-")), every))


def without_gpus(launch: Launch) -> AuditFinding | None:
    """Return why nothing about GPUs can be checked; None if some rank may use one."""
    if not any(facts.gpus or facts.device_files for facts in launch.facts):
        none = "this node has no GPU" if launch.alone else "no rank sees a GPU"
        return not_checked(next(filter(None, map(_unseen, launch.facts)), none))
    if all(VISIBLE in facts.settings and not _entries(facts) for facts in launch.facts):
        return not_checked(f"{VISIBLE} hides all GPUs from every rank, as for a job on CPUs")
    return None


def _unseen(facts: Facts) -> str:
    """Return why NVML shows a rank no GPU; empty if it does, or if the node has none."""
    return facts.nvml_problem if facts.device_files or NVML_FAILS in facts.nvml_problem else ""


def device_per_rank(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks that see no GPU, or share one."""
    if nothing := without_gpus(launch):
        yield nothing
        return
    for machine in launch.machines():
        seen = visible_gpus(machine)
        yield from _blind(launch, machine, seen)
        if not launch.alone:
            yield from _shared(machine, seen)
    if launch.alone:
        yield ok(f"{count(launch.ranks_here, 'GPU')} for {count(launch.ranks_here, 'rank')}")
    yield ok(f"{len(launch.facts)} ranks have a GPU each")


def device_order(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks for which a GPU's number may mean a different GPU than for other ranks."""
    if nothing := without_gpus(launch):
        yield nothing
        return
    for machine in launch.machines():
        orders = grouped(machine, lambda facts: facts.settings.get(ORDER, "unset"))
        if len(orders) > 1:
            told = [f"{value} on {_ranks(who)}" for value, who in orders.items()]
            yield fail(
                f"{ORDER} differs on {machine[0].node}: {', '.join(told)}",
                f"set {ORDER}={BUS_ORDER} for all ranks: a number then means the same GPU to all",
            )
        yield from _different_orders(machine)
        if by_number := [facts for facts in machine if _by_number(facts)]:
            yield warn(
                f"{VISIBLE} names GPUs by number without {ORDER}={BUS_ORDER} on "
                f"{_ranks(by_number)} of {machine[0].node}: CUDA counts the fastest GPU "
                "first, nvidia-smi by bus",
                f"set {ORDER}={BUS_ORDER}, or name the GPUs by UUID",
            )
    yield ok("a number means the same GPU to all ranks of a node")


def fabric(launch: Launch) -> Iterator[AuditFinding]:
    """Name the GPUs that have not joined the NVLink fabric, where there is one."""
    if nothing := without_gpus(launch):
        yield nothing
        return
    yield from (not_checked(f"{one.node}: {why}") for one in launch.facts if (why := _unseen(one)))
    for machine in launch.machines():
        for gpu in gpus_by_uuid(machine).values():
            if gpu.fabric:
                yield fail(
                    f"{gpu} on {machine[0].node} is not in the NVLink fabric: {gpu.fabric}", LOG
                )
    yield ok("no GPU has failed to join its NVLink fabric")


def _blind(
    launch: Launch, machine: Sequence[Facts], seen: dict[int, VisibleGpus]
) -> Iterator[AuditFinding]:
    for facts in machine:
        mine = seen[facts.rank]
        who = facts.node if launch.alone else f"rank {facts.rank} ({facts.node})"
        set_to = f"{VISIBLE}={facts.settings[VISIBLE]}" if VISIBLE in facts.settings else ""
        if not mine.visible:
            yield fail(
                f"{who} sees no GPU: {set_to or _unseen(facts) or 'the node shows none'}",
                "give each rank one GPU, with --gpus-per-task, the GPUs of the pod's resources, or "
                f"{VISIBLE}; where NVML fails, nvidia-smi does too: reload the driver, or reboot",
            )
        elif not mine.used:
            shown = f" ({set_to})" if set_to else ""
            yield fail(
                f"{who}, with local rank {facts.local_rank}, sees "
                f"{count(len(mine.visible), 'GPU')}{shown} on {facts.node}: too few",
                "start as many ranks per node as a rank sees GPUs, such as with "
                "--nproc-per-node gpu",
            )


def _shared(machine: Sequence[Facts], seen: dict[int, VisibleGpus]) -> Iterator[AuditFinding]:
    known = gpus_by_uuid(machine)
    users: dict[tuple[str, str], list[int]] = {}
    for facts in machine:
        for gpu in seen[facts.rank].used:
            # Without NVML a number may be another GPU in another container.
            where = "" if facts.gpus else facts.container
            users.setdefault((where, gpu), []).append(facts.rank)
    for (_, gpu), who in users.items():
        if len(who) > 1:
            yield fail(
                f"{ranks(who)} use the same {known.get(gpu, f'GPU {gpu}')} on {machine[0].node}",
                f"give each rank a GPU of its own: show all to all ranks and let each take the one "
                f"of its LOCAL_RANK, or set {VISIBLE} for each rank",
            )


def _different_orders(machine: Sequence[Facts]) -> Iterator[AuditFinding]:
    """Yield the ranks that see the same GPUs as another rank in a different order."""
    seen = visible_gpus(machine)
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
    known = gpus_by_uuid([facts])
    return comma_list([str(known[gpu].index) if gpu in known else gpu for gpu in gpus])


def _by_number(facts: Facts) -> bool:
    """Whether the rank names its GPUs by number, and CUDA may not count them in bus order."""
    by_number = facts.settings.get(VISIBLE, "").partition(",")[0].strip().isdecimal()
    models = {gpu.model for gpu in facts.gpus}  # None is known without NVML.
    return by_number and facts.settings.get(ORDER) != BUS_ORDER and len(models) > 1


def _ranks(facts: Sequence[Facts]) -> str:
    return ranks(one.rank for one in facts)
