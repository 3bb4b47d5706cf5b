"""What can be wrong in a process group, in which ranks, and where in their code."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rankskew.flight_recorder.dumps import Dump, RecordedOperation
from rankskew.flight_recorder.groups import Group

MISSING, MISMATCH, STUCK = "missing", "mismatch", "stuck"
# Files whose lines are not the user's.
TORCH: Final = ("-packages/torch/", "/torch/distributed/", "/torch/nn/", "/torch/autograd/", "<")


@dataclass(frozen=True, slots=True)
class At:
    """Where a rank is in a group: an operation, and the line of the user's code that began it."""

    rank: int
    operation: str
    number: int
    group: str
    finished: bool
    line: str | None


@dataclass(frozen=True, slots=True)
class CollectiveFinding:
    """What is wrong in one group, at its collective *number*.

    *kind* is MISSING (*ranks* have not begun what *begun* have), MISMATCH (*ranks* have begun
    something else than the others) or STUCK (all have begun it, and *ranks* have not finished).
    *agreed* is the last collective that all ranks have begun alike before it, *last* is where each
    of *ranks* is, and *without_dump* are members whose dump is not there.
    """

    kind: str
    group: str
    description: str
    number: int
    operation: str
    sizes: str
    begun: tuple[int, ...]
    ranks: tuple[int, ...]
    without_dump: tuple[int, ...] = ()
    line: str | None = None
    agreed: str | None = None
    differences: tuple[str, ...] = ()
    last: tuple[At, ...] = ()


def finding(
    kind: str,
    group: Group,
    entry: RecordedOperation,
    begun: Iterable[int],
    ranks: tuple[int, ...],
    without_dump: tuple[int, ...] = (),
    differences: tuple[str, ...] = (),
    last: tuple[At, ...] = (),
) -> CollectiveFinding:
    before = [each[entry.number - 1] for each in group.entries.values() if entry.number - 1 in each]
    return CollectiveFinding(
        kind=kind,
        group=group.name,
        description=group.description,
        number=entry.number,
        operation=entry.operation,
        sizes=described(entry).removeprefix(entry.operation).strip(),
        begun=tuple(begun),
        ranks=ranks,
        without_dump=without_dump,
        line=line_of(entry),
        agreed=f"{before[0].operation} {before[0].number}" if before else None,
        differences=differences,
        last=last,
    )


def where(dump: Dump) -> At:
    entry = dump.entries[-1]
    group = entry.description or entry.group
    return At(dump.rank, entry.operation, entry.number, group, entry.finished, line_of(entry))


def described(entry: RecordedOperation) -> str:
    """Return the operation with its types and sizes: all_reduce of Float [8]."""
    kinds = "/".join(dict.fromkeys(entry.types))
    sizes = ", ".join(str(list(size)) for size in entry.input_sizes)
    return f"{entry.operation} of {kinds} {sizes}" if sizes else entry.operation


def line_of(entry: RecordedOperation) -> str | None:
    """Return the innermost line outside torch; None if the dump has no stacks."""
    for name, file, line in entry.frames:
        if not any(part in file for part in TORCH):
            return f"{name} ({file}:{line})"
    return None


def at_line(entry: RecordedOperation) -> str:
    line = line_of(entry)
    return "" if line is None else f", at {line}"
