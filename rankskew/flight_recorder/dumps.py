"""Reads the dumps of torch's flight recorder, without running code from a pickle.

The formats are those of torch 2.4 to 2.15 (versions 2.2 to 2.10 in the file): a pickle, or the JSON
of the debug server. torch.distributed.flight_recorder has the schema.
"""

import ast
import io
import json
import os
import pickle
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exporter.errors import UsageError, reading, reason
from rank_probe.wire.text import printable

# torch names a file by its rank: nccl_trace_rank_3, comm_lib_trace_rank_3. Others add the time or
# an extension. No job has a million ranks.
NAME: Final = re.compile(r".*rank_(\d{1,6})(?:_\d+)?(?:\.(?:json|pkl|pickle))?")
MOST_RANKS: Final = 10**6
# A buffer of 20,000 entries with their stacks takes about 30 MiB.
LARGEST_BYTES: Final = 1 << 28
LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """One operation as a rank recorded it.

    *group* is the name of its process group and *description* the user's. *number* counts the
    group's collectives, or its sends and receives. *frames* are innermost first: function, file and
    line. *finished* is whether the rank is done with it, even by an error, *completed* whether
    torch has seen it succeed, and *started* whether its device has reached it. None means that it
    is not recorded.
    """

    group: str
    description: str
    number: int
    is_p2p: bool
    operation: str
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    finished: bool | None
    completed: bool
    started: bool | None
    frames: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Dump:
    """What *rank* recorded, in order; *members* are the ranks of each group that it names."""

    rank: int
    version: str
    entries: tuple[RecordedOperation, ...]
    members: Mapping[str, frozenset[int]]


def read_directory(path: Path) -> tuple[list[Dump], dict[int, str]]:
    """Return the dumps in *path*, and by rank what is wrong with those that cannot be read.

    Raises UsageError if *path* is no directory with the dumps of one job.
    """
    try:
        files = sorted(file for file in path.iterdir() if not file.is_dir())
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {reason(error)}; name the directory with one dump per rank"
        ) from error
    by_rank: dict[int, Path] = {}
    for file in files:
        if (match := NAME.fullmatch(file.name)) is None:
            continue
        other = by_rank.setdefault(int(match[1]), file)
        if other != file:
            raise UsageError(
                f"{path} has two dumps of rank {match[1]}, {other.name} and {file.name}; "
                "keep those of one job and one time"
            )
    dumps: list[Dump] = []
    unreadable: dict[int, str] = {}
    for rank, file in sorted(by_rank.items()):
        try:
            dumps.append(_read(file, rank))
        except UsageError as error:  # Hangs cut some dumps off: use the others.
            unreadable[rank] = printable(str(error))
    return dumps, unreadable


def _read(file: Path, rank: int) -> Dump:
    # Any user may write there: a pipe would block, and a link lead elsewhere.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with reading(file), os.fdopen(os.open(file, flags), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise UsageError(f"{file} is not a file")
        data = opened.read(LARGEST_BYTES + 1)
    if not data:
        raise UsageError(f"{file} is empty: its process ended while it wrote")
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"{file} is larger than {LARGEST_BYTES >> 20} MiB, so it is no dump")
    try:
        found = json.loads(data) if data.lstrip()[:1] == b"{" else _Plain(io.BytesIO(data)).load()
        return _dump(rank, found)
    except UnsafePickle as error:
        raise UsageError(f"{file} is refused: {error}") from error
    except Exception as error:
        raise UsageError(f"{file} is no dump of torch's flight recorder, or is cut off") from error


class UnsafePickle(Exception):
    """A pickle asks for more than plain data."""


class _Plain(pickle.Unpickler):
    """Unpickles dicts, lists, tuples, text and numbers, of which torch's dumps consist."""

    def find_class(self, module: str, name: str) -> Any:
        raise UnsafePickle(f"it would run {module}.{name}, and a dump has plain data only")

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafePickle("it refers to data elsewhere, and a dump has plain data only")


def _dump(rank: int, found: Mapping[str, Any]) -> Dump:
    recorded = _apart(found.get("entries", ()))
    # NCCL's starts are recorded only with TORCH_NCCL_ENABLE_TIMING, those of gloo never; the hook
    # below learns of both at the end.
    tells_starts = any(
        each["state"] == "started" or (each.get(START) and each[START] != each.get(END))
        for each in recorded
    )
    entries = tuple(_entry(each, tells_starts) for each in recorded)
    members = {}
    for name, group in found.get("pg_config", {}).items():
        members[_text(name)] = _ranks(group["ranks"])  # Of gloo, one group without a name.
    return Dump(rank, _text(found["version"]), entries, members)


START, END = "time_discovered_started_ns", "time_discovered_completed_ns"


def _apart(recorded: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return what was *recorded*, with an end for each of the operations that torch coalesced.

    torch records their end only in an entry after them, which has no tensors.
    """
    entries: list[Mapping[str, Any]] = []
    for each in recorded:
        at = len(entries)
        if str(each["profiling_name"]).endswith("coalesced") and not each["input_sizes"]:
            while at and _is_part(entries[at - 1], each):
                at -= 1
            if not entries and each.get("record_id"):
                continue  # The buffer has dropped the operations that it ends.
        ends = {name: each.get(name) for name in ("state", "retired", START, END)}
        parts: list[Mapping[str, Any]] = [{**part, **ends} for part in entries[at:]]
        entries[at:] = parts or [each]
    return entries


def _is_part(entry: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    number = "p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"
    is_alike = (entry["process_group"], entry[number]) == (whole["process_group"], whole[number])
    return is_alike and entry["state"] == "scheduled"


def _ranks(told: Any) -> frozenset[int]:
    """Return the ranks in *told*, which is text: "[0, 1]"."""
    listed = ast.literal_eval(told) if isinstance(told, str) else told
    ranks = frozenset(int(rank) for rank in listed)
    if ranks and not 0 <= min(ranks) <= max(ranks) < MOST_RANKS:
        raise ValueError(f"no job has rank {max(ranks)}")
    return ranks


# Whether an operation that torch retired but did not see succeed is over: NCCL's has timed out.
# Elsewhere c10d's FlightRecorderHook retires it at its end, or when issued if no end is reported.
RETIRED: Final = {"gloo": True, "nccl": False, "xccl": False}


def _entry(entry: Mapping[str, Any], tells_starts: bool) -> RecordedOperation:
    group, description = entry["process_group"]
    is_p2p = bool(entry["is_p2p"])
    library, _, operation = _text(entry["profiling_name"]).rpartition(":")
    types = (*entry.get("input_dtypes", ()), *entry.get("output_dtypes", ()))
    completed = entry["state"] == "completed"
    return RecordedOperation(
        group=_text(group),
        description=_text(description),
        number=int(entry["p2p_seq_id" if is_p2p else "collective_seq_id"]),
        is_p2p=is_p2p,
        operation=operation,
        input_sizes=_sizes(entry["input_sizes"]),
        output_sizes=_sizes(entry["output_sizes"]),
        types=tuple(_text(each) for each in types),
        finished=completed or (RETIRED.get(library) if entry.get("retired") else False),
        completed=completed,
        started=entry["state"] != "scheduled" if tells_starts else None,
        frames=tuple(
            (_text(frame["name"]), _text(frame["filename"]), int(frame["line"]))
            for frame in entry.get("frames") or ()
        ),
    )


def _text(told: Any) -> str:
    """Return *told* fit for a terminal: a dump may come from anybody."""
    return printable(str(told)[:LONGEST])


def _sizes(told: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(each) for each in size) for size in told)
