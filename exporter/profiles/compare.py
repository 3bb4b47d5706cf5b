"""Says in one sentence what takes longer on a late rank than on its peer, from their traces."""

from collections.abc import Mapping
from typing import Final

from exporter.profiles.trace import COMMUNICATION, COPIES, ProfiledOperation, ProfileTrace

# Of a step: what takes longer by less is no reason for anything.
LEAST_SHARE: Final = 0.02
# A class below this share of the computation says little about a clock.
SHARE_OF_CLOCK: Final = 0.05
# A slower clock: every class takes longer by this at least, and they differ by no more.
SLOWER: Final = 1.05
ALIKE: Final = 1.1
MOST_ROWS: Final = 8
NONE: Final = ProfiledOperation()


def sentence(late: ProfileTrace, peer: ProfileTrace) -> str:
    """Return what takes longer on the *late* rank, and a reason only where the traces show it."""
    if late.has_device != peer.has_device:
        return "Only one of the traces has kernels of a device: they cannot be compared."
    where = "kernels" if late.has_device else "operators"
    if ratio := _of_all_classes(late, peer):
        reason = "clocks" if late.has_device else "the CPU's clock, or other work on it"
        return f"All {where} take {ratio:.2g} times as long, whatever they compute: {reason}."
    excess = _excess(late, peer)
    name = max(excess, key=lambda each: excess[each], default="")
    if not name or excess[name] < LEAST_SHARE * peer.step_seconds:
        return f"No {where} take longer than on its peer, so the delay is between them."
    one, other = late.operations[name], peer.operations.get(name, NONE)
    calls = f": {one.calls:.3g} calls, not {other.calls:.3g}" if _differs(one, other) else ""
    return f"{name} takes {_ms(one)} a step, {_ms(other)} on its peer{calls}."


def as_text(late: ProfileTrace, peer: ProfileTrace) -> str:
    """Return the sentence, and a table of the classes and of the operations that differ most."""
    excess = _excess(late, peer)
    names = sorted(excess, key=lambda each: -abs(excess[each]))[:MOST_ROWS]
    kinds = sorted({each.kind for each in (*late.operations.values(), *peer.operations.values())})
    rows = [(kind, late.seconds_of(kind), peer.seconds_of(kind)) for kind in kinds]
    one, other = late.operations, peer.operations
    rows += [(each, one.get(each, NONE).seconds, other.get(each, NONE).seconds) for each in names]
    table = [f"{name[:40]:<40} {both[0] * 1e3:>9.2f} {both[1] * 1e3:>9.2f}" for name, *both in rows]
    head = f"{'ms a step':<40} {'late':>9} {'peer':>9}"
    return "\n".join([sentence(late, peer), "", head, *table])


def _excess(late: ProfileTrace, peer: ProfileTrace) -> Mapping[str, float]:
    """Return how much longer each operation takes a step, but for those that wait for ranks."""
    return {
        name: late.operations.get(name, NONE).seconds - peer.operations.get(name, NONE).seconds
        for name, each in {**late.operations, **peer.operations}.items()
        if each.kind != COMMUNICATION
    }


def _of_all_classes(late: ProfileTrace, peer: ProfileTrace) -> float | None:
    """Return how many times as long all classes take; None if they differ, or the work does."""
    kinds = {each.kind for each in peer.operations.values()} - {COMMUNICATION, COPIES}
    computed = sum(map(peer.seconds_of, kinds))
    kinds = {kind for kind in kinds if peer.seconds_of(kind) > SHARE_OF_CLOCK * computed}
    ratios = [late.seconds_of(kind) / peer.seconds_of(kind) for kind in kinds]
    if len(ratios) < 2 or min(ratios) < SLOWER or max(ratios) > ALIKE * min(ratios):
        return None
    theirs = peer.operations
    if any(_differs(each, theirs.get(name, NONE)) for name, each in late.operations.items()):
        return None
    return sum(map(late.seconds_of, kinds)) / sum(map(peer.seconds_of, kinds))


def _differs(one: ProfiledOperation, other: ProfiledOperation) -> bool:
    return abs(one.calls - other.calls) >= 0.5


def _ms(operation: ProfiledOperation) -> str:
    return f"{operation.seconds * 1e3:.3g} ms"
