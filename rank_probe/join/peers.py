"""What rank 0 reads of all ranks: their facts, once, and their figures, which it sums up by group.

It reads figures only while the verdict names late ranks: only those are compared with their peers.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from rank_probe.guest.yielding import give_way
from rank_probe.join.figures import (
    EARLY_SECONDS,
    HEAD,
    MAGIC,
    NAN,
    OF_PEERS,
    POST_SECONDS,
    pack,
)
from rank_probe.join.store import (
    BATCH,
    Store,
    batches,
    facts_key,
    figures_key,
    own_arithmetic,
    peers_key,
    present,
)
from rank_probe.judge.standing import STANDS_SECONDS, Stand, suspects
from rank_probe.judge.verdict import NAMED, Verdict
from rank_probe.process.facts import number, read_facts, read_whereabouts
from rank_probe.wire.figures import FIGURES

# A little less than the ranks' POST_SECONDS, so that a round that comes early skips no reading.
READ_SECONDS: Final = POST_SECONDS - EARLY_SECONDS
# A rank that has posted nothing is looked for again after this many readings.
PATIENT_READINGS: Final = 6

THIRDS: Final = (1 / 3, 1 / 2, 2 / 3)


class PeerFigures:
    """Writes a key for each peer group that has a late rank; for the join's thread of rank 0."""

    def __init__(self, store: Store, stop: threading.Event, pause_seconds: float) -> None:
        self._store = store
        self._stop = stop
        self._pause_seconds = pause_seconds
        self._late: set[int] = set()
        self._read_at: float | None = None
        self._readings = 0
        self._silent: set[int] = set()
        self._written: set[int] = set()

    def share(self, verdict: Verdict, ranks: Sequence[int], now: float) -> None:
        """Publish the figures of *ranks* for the groups that have late ranks, if it is time."""
        late = {each.rank for each in verdict.late if each.kind in NAMED}
        is_news = bool(late - self._late)
        self._late = late
        if not late:
            self._read_at = None
            return
        is_time = self._read_at is None or now - self._read_at >= READ_SECONDS
        if not (is_news or is_time):
            return
        self._read_at = now
        table = self._table(ranks)
        if table is not None:
            self._write(table)

    def take_back(self) -> None:
        """Delete the groups' keys."""
        for group in self._written:
            self._store.delete_key(peers_key(group))

    def _table(self, ranks: Sequence[int]) -> "PostedFigures | None":
        if self._readings % PATIENT_READINGS == 0:
            self._silent.clear()
        self._readings += 1
        table = PostedFigures()
        for some in batches([rank for rank in ranks if rank not in self._silent]):
            told = present(self._store, figures_key, some)
            self._silent.update(set(some) - set(told))
            if told:
                messages = self._store.multi_get([figures_key(rank) for rank in told])
                give_way()
                with own_arithmetic():
                    table.add(told, messages)
            if self._stop.wait(self._pause_seconds):
                return None
        give_way()
        return table

    def _write(self, table: "PostedFigures") -> None:
        with own_arithmetic():
            messages = list(table.messages_for_groups_of(self._late))
        for group, message in messages:
            self._store.set(peers_key(group), message)
            self._written.add(group)
            give_way()


class PeerFacts:
    """Reads, once per rank, what the ranks know of themselves; for the join's thread of rank 0.

    *known* are the facts by rank; ranks of a node share one dictionary. Whereabouts are sent with
    the facts, and are read again for each verdict.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looks = 0
        self._read: dict[bytes, dict[str, str]] = {}
        self.known: dict[int, dict[str, str]] = {}
        self._heard: dict[int, tuple[dict[str, str], float]] = {}

    def learn(self, ranks: Sequence[int]) -> None:
        """Read those of *ranks*, at most BATCH of them, whose facts are not known yet."""
        unknown = [rank for rank in ranks if rank not in self.known][:BATCH]
        if not unknown:
            return
        self._looks += 1
        # Ranks of another release may post none: look for those only now and then.
        if self._looks > PATIENT_READINGS and self._looks % PATIENT_READINGS:
            return
        keys = [facts_key(rank) for rank in unknown]
        if self._store.check(keys):
            give_way()
            for rank, said in zip(unknown, self._store.multi_get(keys), strict=True):
                if said not in self._read:
                    self._read[said] = read_facts(said)
                self.known[rank] = self._read[said]
            self._looks = 0
        give_way()

    def placed(self, verdict: Verdict) -> Verdict:
        """Return *verdict*, after steps that have ended, with the whereabouts of the late ranks."""
        self._heard.clear()
        found = self._whereabouts([each.rank for each in verdict.late])
        late = [replace(each, at=found.get(each.rank, {})) for each in verdict.late]
        return replace(verdict, late=tuple(late))

    def suspect(self, ranks: Sequence[int], now: float) -> dict[str, str]:
        """Return which of its *ranks* a job that ends no step waits for; empty if for none.

        A rank that posts nothing new for long is silent; until then nothing is known of it.
        """
        found, stands = self._whereabouts(ranks), dict[int, Stand]()
        for rank, at in found.items():
            if self._heard.setdefault(rank, (at, now))[0] != at:
                self._heard[rank] = at, now
            quiet, steps = now - self._heard[rank][1], number(at.get("steps", ""))
            if quiet > STANDS_SECONDS:
                stands[rank] = Stand("", quiet, steps)
                found[rank] = {name: each for name, each in at.items() if name != "stage"}
            elif "stage" in at:
                seconds, line = number(at.get("seconds", "")), at.get("line", "")
                stands[rank] = Stand(at["stage"], seconds, steps, line=line)
        return next(({"rank": str(rank), **found[rank]} for rank in suspects(stands)), {})

    def _whereabouts(self, ranks: Sequence[int]) -> dict[int, dict[str, str]]:
        found: dict[int, dict[str, str]] = {}
        for some in batches(ranks):
            told = present(self._store, facts_key, some)
            said = self._store.multi_get([facts_key(rank) for rank in told])
            found |= zip(told, map(read_whereabouts, said), strict=True)
            give_way()
        return found


class PostedFigures:
    """The figures of the ranks that have posted them."""

    def __init__(self) -> None:
        self._ranks: list[int] = []
        self._groups: list[int] = []
        self._rows: list[Tensor] = []

    def add(self, ranks: Sequence[int], messages: Sequence[bytes]) -> None:
        """Add the *messages* of *ranks*; what is not such a message is left out."""
        rows = bytearray()
        for rank, message in zip(ranks, messages, strict=True):
            row = row_of(message)
            if row is not None:
                self._ranks.append(rank)
                self._groups.append(HEAD.unpack_from(message)[2])
                rows += row
        give_way()
        if rows:
            self._rows.append(torch.frombuffer(rows, dtype=torch.float32).view(-1, len(FIGURES)))

    def messages_for_groups_of(self, late: set[int]) -> Iterator[tuple[int, bytes]]:
        """Yield each group with a *late* rank, and the message for it.

        The late ranks of the group are left out, unless there are no others.
        """
        if not self._rows:
            return
        figures = torch.cat(self._rows)
        give_way()
        members: dict[int, list[int]] = {}
        for row, group in enumerate(self._groups):
            members.setdefault(group, []).append(row)
        give_way()
        for group, rows in members.items():
            healthy = [row for row in rows if self._ranks[row] not in late]
            give_way()
            if len(healthy) < len(rows):
                at = torch.tensor(healthy or rows, dtype=torch.int64, device="cpu")
                yield group, group_message(group, figures[at])


def row_of(message: bytes) -> bytes | None:
    """Return the figures in *message* in the order of FIGURES; None if it is no such message."""
    if len(message) < HEAD.size:
        return None
    magic, count, _ = HEAD.unpack_from(message)
    if magic != MAGIC or len(message) != HEAD.size + 4 * count:
        return None
    return message[HEAD.size : HEAD.size + len(_NOTHING)] + _NOTHING[4 * count :]


def group_message(group: int, figures: Tensor) -> bytes:
    """Return the message with the thirds and the median of *figures* [ranks, figures]."""
    thirds = torch.tensor(THIRDS, dtype=torch.float32, device="cpu")
    values: list[float] = []
    for at in range(figures.shape[1]):
        values += torch.nanquantile(figures[:, at], thirds).tolist()
        give_way()
    return HEAD.pack(MAGIC, len(values) // OF_PEERS, group) + pack(values)


_NOTHING: Final = pack([NAN] * len(FIGURES))
