"""What the dumps say, as text and as one JSON document."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from exporter.live.wording import sentence
from rank_probe.wire.document import as_document
from rankskew.flight_recorder.dumps import Dump
from rankskew.flight_recorder.finding import MISMATCH, MISSING, CollectiveFinding
from rankskew.wording import counted, named_ranks

NOTHING: Final = "Nothing is wrong: the ranks have begun the same collectives, and finished them."
PARTIAL: Final = (
    "Nothing is wrong in these dumps, but {missing} left none that can be read, so nobody can tell."
)
VICTIM: Final = "What follows may be its consequence:"


def as_text(
    dumps: Sequence[Dump],
    unreadable: Mapping[int, str],
    missing: Sequence[int],
    found: Sequence[CollectiveFinding],
) -> str:
    """Return the report for people, the likely root first; *missing* ranks have no dump."""
    entries = sum(len(dump.entries) for dump in dumps)
    lines = [f"{counted(len(dumps), 'dump')} with {entries} operations.", *unreadable.values()]
    if not found:
        lines.append(PARTIAL.format(missing=named_ranks(missing)) if missing else NOTHING)
    for place, each in enumerate(found):
        lines += ["", *([VICTIM] if place == 1 else []), _headline(each)]
        lines += [f"  {line}" for line in _details(each)]
    return "\n".join(lines)


def as_json(
    dumps: Sequence[Dump],
    unreadable: Mapping[int, str],
    missing: Sequence[int],
    found: Sequence[CollectiveFinding],
) -> str:
    """Return the same as one JSON document."""
    said: dict[str, Any] = {
        "dumps": [dump.rank for dump in dumps],
        "ranks_without_dump": missing,
        "unreadable": [{"rank": rank, "problem": each} for rank, each in unreadable.items()],
        "findings": [asdict(each) | {"sentence": _headline(each)} for each in found],
    }
    return as_document("flight-recorder", said)


def _headline(found: CollectiveFinding) -> str:
    what = f"{found.operation} {found.number} in group {_group(found)}"
    if found.kind == MISMATCH:
        return sentence(f"{named_ranks(found.ranks)} began something else than {what}.")
    if found.kind == MISSING:
        begun = f"{named_ranks(found.begun)} {_wait(found.begun)} in {what}"
        return sentence(f"{begun}; {' and '.join(_absent(found))}.")
    if set(found.ranks) == set(found.begun):
        return (
            f"All ranks are in {what}, and none has finished it: look at the network between them."
        )
    return sentence(
        f"all ranks have begun {what}, but {named_ranks(found.ranks)} {_have(found.ranks)} "
        "not finished it."
    )


def _absent(found: CollectiveFinding) -> Iterator[str]:
    if found.ranks:
        yield f"{named_ranks(found.ranks)} {_have(found.ranks)} not begun it"
    if found.without_dump:
        yield f"{named_ranks(found.without_dump)} left no dump that can be read"


def _details(found: CollectiveFinding) -> Iterator[str]:
    if found.sizes:
        yield f"{found.operation} {found.sizes}"
    if found.line is not None:
        yield f"begun at {found.line}"
    yield from found.differences
    for at in found.last:
        state = "finished" if at.finished else "not finished"
        where = f", begun at {at.line}" if at.line else ""
        yield f"rank {at.rank} was last in {at.operation} {at.number} of {at.group}, {state}{where}"
    if found.agreed is not None:
        yield f"before it, all ranks agreed on {found.agreed}"


def _group(found: CollectiveFinding) -> str:
    return f"{found.group} ({found.description})" if found.description else found.group


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"
