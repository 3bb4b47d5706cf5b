"""Sends that wait for a receive that was not begun, and the other way round."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rankskew.flight_recorder.dumps import Dump, RecordedOperation
from rankskew.flight_recorder.finding import MISSING, CollectiveFinding, line_of, where

# torch names them by the ranks within the group: "send 1->2", "recv 2<-1".
NAME: Final = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")

# The group's name, whether it is a send, and the ranks of the sender and the receiver.
Way = tuple[str, bool, int, int]


def unmatched(dumps: Sequence[Dump]) -> list[CollectiveFinding]:
    """Return the transfers that a rank waits for while the other rank has not begun its side."""
    waiting: dict[Way, tuple[Dump, RecordedOperation]] = {}
    for dump in dumps:
        for way, entry in _unfinished(dump):
            waiting.setdefault(way, (dump, entry))
    by_rank = {dump.rank: dump for dump in dumps}
    found = []
    for (group, is_send, sender, receiver), (dump, entry) in sorted(
        waiting.items(), key=lambda item: item[0]
    ):
        other = receiver if is_send else sender
        if (group, not is_send, sender, receiver) not in waiting:
            found.append(_found(entry, dump.rank, other, by_rank.get(other)))
    return found


def _unfinished(dump: Dump) -> Iterator[tuple[Way, RecordedOperation]]:
    for entry in dump.entries:
        name = NAME.fullmatch(entry.operation)
        if entry.is_p2p and not entry.finished and name is not None:
            members = sorted(dump.members.get(entry.group) or ())
            mine, other = int(name[2]), int(name[4])
            if members and max(mine, other) < len(members):
                mine, other = members[mine], members[other]
            is_send = name[1] == "send"
            yield (entry.group, is_send, *((mine, other) if is_send else (other, mine))), entry


def _found(
    entry: RecordedOperation, begun: int, other: int, dump: Dump | None
) -> CollectiveFinding:
    return CollectiveFinding(
        kind=MISSING,
        group=entry.group,
        description=entry.description,
        number=entry.number,
        operation=entry.operation.partition(" ")[0],
        sizes="",
        begun=(begun,),
        ranks=() if dump is None else (other,),
        without_dump=(other,) if dump is None else (),
        line=line_of(entry),
        last=() if dump is None or not dump.entries else (where(dump),),
    )
