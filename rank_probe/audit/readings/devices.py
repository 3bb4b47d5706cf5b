"""Which GPU each rank of a machine uses, from what CUDA lets it see and its local rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rank_probe.audit.readings.facts import Facts, GpuFacts

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
BUS_ORDER = "PCI_BUS_ID"


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """The GPUs that a rank sees, in CUDA's order, and those of them that it uses.

    A GPU is its UUID; without NVML, what CUDA_VISIBLE_DEVICES calls it, or its number.
    """

    visible: tuple[str, ...]
    used: tuple[str, ...]


def has_gpus(facts: Facts) -> bool:
    """Whether the node of *facts* shows any sign of a GPU to this rank."""
    return bool(facts.gpus or facts.device_files)


def hides_all(facts: Facts) -> bool:
    """Whether a variable hides every GPU from this rank."""
    return VISIBLE in facts.settings and not _entries(facts)


def seen(machine: Sequence[Facts]) -> dict[int, VisibleGpus]:
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


def names(machine: Sequence[Facts]) -> Mapping[str, str]:
    """Return what to call each GPU of *machine*, by its UUID."""
    return {gpu.uuid: f"GPU {gpu.index} ({gpu.uuid})" for one in machine for gpu in one.gpus}


def by_uuid(facts: Facts) -> dict[str, GpuFacts]:
    """Return the GPUs that NVML shows to this rank."""
    return {gpu.uuid: gpu for gpu in facts.gpus}


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
        if not entry.isdecimal():  # A UUID, of which a beginning is enough, or a MIG device.
            full = [uuid for uuid in uuids if uuid.startswith(entry)]
            found.append(full[0] if len(full) == 1 else entry)
        elif everything and int(entry) >= len(everything):
            break  # As CUDA does: it ignores what follows the first number that is wrong.
        else:
            found.append(everything[int(entry)] if everything else entry)
    return tuple(found)


def _entries(facts: Facts) -> list[str]:
    """Return the valid beginning of CUDA_VISIBLE_DEVICES."""
    entries = []
    for entry in facts.settings.get(VISIBLE, "").split(","):
        entry = entry.strip()
        if not (entry.isdecimal() or entry.startswith(("GPU-", "MIG-"))):
            break
        entries.append(entry)
    return entries
