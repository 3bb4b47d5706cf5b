"""The ingest application, called as its listener would call it, and bodies for it."""

import dataclasses
import json
from typing import Any

from exporter.ingest.app import IngestApp, IngestCounts
from exporter.ingest.token_file import TokenFile
from exporter.listeners.peer import Peer
from exporter.operator.levels import Orders
from exporter.ranks.limits import RankLimits
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import SNAPSHOT_PATH
from tests.exporter.asgi import Answer, ask
from tests.exporter.clock import Clock
from tests.exporter.snapshots import DEFAULT

MAX_BODY_BYTES = 2_000
USER, OTHER = Peer(1000), Peer(1001)
LINE = {"stage": "data", "place": "Corpus.__next__ (data/corpus.py:41)", "share": 0.71}
STATE = {"stage": "data", "state": "sleep", "share": 0.71, "place": "read (corpus.py:41)"}
# The fields of a snapshot that have no default.
MINIMAL = {
    field.name: getattr(DEFAULT, field.name)
    for field in dataclasses.fields(DEFAULT)
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
}


def body(**changes: Any) -> bytes:
    """Return the default snapshot with *changes*, whatever they are."""
    return json.dumps(dataclasses.asdict(DEFAULT) | changes).encode()


class Ingest:
    """An application with its store; *parts* are those of IngestApp that a test brings."""

    def __init__(
        self,
        limits: RankLimits | None = None,
        token: TokenFile | None = None,
        **parts: Any,
    ) -> None:
        self.clock = Clock()
        self.store = RankStore(limits, self.clock)
        self.counts = IngestCounts()
        orders = Orders(self.store)
        self.app = IngestApp(self.store, self.counts, orders, MAX_BODY_BYTES, token, **parts)

    def send(
        self, method: str, path: str, content: bytes = b"", peer: Peer | None = None, **headers: str
    ) -> Answer:
        headers = {"content_type": "application/json"} | headers
        answer = ask(self.app, method, path, content, peer=peer, **headers)
        assert answer is not None
        return answer

    def push(self, content: bytes, peer: Peer | None = None, **headers: str) -> Answer:
        return self.send("POST", SNAPSHOT_PATH, content, peer, **headers)

    def counted(self) -> dict[str, int]:
        """Return how many pushes had each result."""
        return {result: count for result, count in self.counts.results.items() if count}
