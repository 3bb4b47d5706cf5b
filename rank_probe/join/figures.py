"""Figures through the join: each rank posts its own, a late rank reads those of its peers.

Only rank 0 reads them all, and only while the verdict names somebody: see peers.py. A message has
a small head that says how many figures follow, so that a longer or shorter one of another release
is still read.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rank_probe.join.ring import digest
from rank_probe.join.store import Store, figures_key, peers_key
from rank_probe.judge.verdict import late_stage
from rank_probe.wire.figures import FIGURES

# How often a rank posts its figures; its exporter sends new ones as often.
POST_SECONDS: Final = 10.0
# Subtracted from the period, so that a round that comes early does not skip a post.
EARLY_SECONDS: Final = 1.0
# Posted figures are withdrawn once the exporter has sent no new ones for this long.
STALE_SECONDS: Final = 60.0

# Magic (it includes the version), the number of figures that follow, digest of the peer group.
HEAD: Final = struct.Struct("<iiq")
MAGIC: Final = 0x524B4601
NAN: Final = float("nan")
# The largest value that the exporter accepts: see exporter.ingest.values.
LARGEST: Final = 1e15
# Per figure: lower third, median, upper third.
OF_PEERS: Final = 3


def known_figures(said: object) -> dict[str, float]:
    """Return the figures in what an exporter *said*: known names with numbers."""
    if not isinstance(said, Mapping):
        return {}
    numbers = {name: said[name] for name in FIGURES if type(said.get(name)) in (int, float)}
    return {name: float(each) for name, each in numbers.items() if -LARGEST <= each <= LARGEST}


def message(figures: Mapping[str, float], group: str) -> bytes:
    """Return what a rank of peer group *group* posts."""
    values = [figures.get(name, NAN) for name in FIGURES]
    return HEAD.pack(MAGIC, len(values), digest(group)) + pack(values)


def pack(values: Sequence[float]) -> bytes:
    """Return *values* as float32."""
    return struct.pack(f"<{len(values)}f", *values)


def read_peers(said: bytes) -> dict[str, list[float]]:
    """Return by name what rank 0 *said* about a peer group; empty if it is no such message."""
    if len(said) < HEAD.size:
        return {}
    magic, count, _ = HEAD.unpack_from(said)
    if magic != MAGIC or len(said) != HEAD.size + 4 * OF_PEERS * count:
        return {}
    values = struct.unpack_from(f"<{OF_PEERS * count}f", said, HEAD.size)
    found = {
        name: [float(f"{each:.6g}") for each in values[OF_PEERS * at : OF_PEERS * (at + 1)]]
        for at, name in enumerate(FIGURES[:count])
    }
    return {name: each for name, each in found.items() if all(map(_is_sane, each))}


def _is_sane(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= LARGEST


class OwnFigures:
    """A rank's part: posts the figures from its exporter, and reads its peers' while it is late.

    Any thread may call `tell`; the rest is for the join's thread. *peers* are the figures of its
    peers, empty while it is not late.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._told: dict[str, float] | None = None
        self._posted: dict[str, float] | None = None
        self._posted_at: float | None = None
        self._is_empty = True
        self.peers: dict[str, list[float]] = {}

    def tell(self, figures: dict[str, float]) -> None:
        """Post *figures* soon."""
        self._told = figures

    def move(self, store: Store) -> None:
        """Post to *store* from now on, beginning with the figures that were posted last."""
        self._store, self._told = store, self._told or self._posted
        self._posted_at, self._is_empty, self.peers = None, True, {}

    def post(self, group: str, now: float) -> None:
        """Post the figures received since the last post, if it is time.

        The first message may be empty: rank 0 checks many keys at a time, and a missing key costs
        it more calls.
        """
        since = math.inf if self._posted_at is None else now - self._posted_at
        if self._told and (self._is_empty or since >= POST_SECONDS - EARLY_SECONDS):
            figures, self._told = self._told, None
            self._posted = figures
        elif self._posted_at is None or (since > STALE_SECONDS and not self._is_empty):
            figures = {}
        else:
            return
        self._store.set(figures_key(self._rank), message(figures, group))
        self._posted_at, self._is_empty = now, not figures

    def read(self, group: str, verdict: Mapping[str, Any] | None) -> None:
        """Read the figures of peer group *group*, if *verdict* names this rank."""
        if verdict is None or late_stage(verdict, self._rank, {}) is None:
            self.peers = {}
            return
        key = peers_key(digest(group))
        if self._store.check([key]):
            self.peers = read_peers(self._store.multi_get([key])[0])
