"""The ingest listener: takes snapshots from training processes, and orders from their owners."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from exporter.events import EventLog
from exporter.ingest.description import describe_snapshots
from exporter.ingest.dry_run import DryRun, serve_dry_runs
from exporter.ingest.schema import RESULT_OF, RESULTS, Refused, parse
from exporter.ingest.token_file import TokenFile
from exporter.listeners.peer import Peer
from exporter.operator.levels import Orders, own
from exporter.operator.orders import CONTROL_PATH, Order
from exporter.operator.refusals import REFUSALS, Ordered, say_what_is_wrong
from exporter.ranks.limits import NoRoom
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import Forbidden, RankStore, Superseded
from exporter.scrapers import Scrapers
from rank_probe.version import __version__
from rank_probe.wire.snapshot import DRY_RUN_PATH, SNAPSHOT_PATH, Snapshot

# Returns further fields of the answer to a push, by name; usually none.
Told = Callable[[Snapshot], Mapping[str, Any]]
ONLY_POST: Final = JSONResponse(
    {"error": f"Method Not Allowed: {SNAPSHOT_PATH} takes POST only."}, 405, {"Allow": "POST"}
)


@dataclass(slots=True)
class IngestCounts:
    """How many snapshots ended with each result, and how many of their fields were ignored."""

    results: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESULTS, 0))
    unknown_fields: int = 0

    def turn_away(self) -> None:
        """Count a connection that was turned away because there was no room."""
        self.results["turned_away"] += 1


class BrokenOff(Exception):
    """The connection ended before the body was complete."""


class IngestApp:
    """Puts snapshots into *store* and counts them in *counts*. Call from the event loop only.

    With a *token*, clients must send it over TCP; over the Unix socket the kernel identifies them.
    *scrapers* are listed in the answer to a dry run. *events* sees each new snapshot. *jobs* knows
    which ranks are late where no join does. *told* returns what a rank passes on to its peers.

    FastAPI serves everything but the push: docs/decisions.md shows what a push
    through FastAPI would cost.
    """

    def __init__(
        self,
        store: RankStore,
        counts: IngestCounts,
        orders: Orders,
        max_body_bytes: int,
        token: TokenFile | None = None,
        scrapers: Scrapers | None = None,
        events: EventLog | None = None,
        jobs: NodeJobs | None = None,
        told: Told = lambda snapshot: {},
    ) -> None:
        self._store = store
        self._counts = counts
        self._orders = orders
        self._jobs = jobs or NodeJobs(store)
        self._max_body_bytes = max_body_bytes
        self._token = token
        self._api = _api(orders, DryRun(store, scrapers or Scrapers()))
        self._events = events
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        is_push = scope["path"] == SNAPSHOT_PATH
        if scope["method"] != "POST":
            await (ONLY_POST if is_push else self._api)(scope, receive, send)
            return
        try:
            self._admit(scope)
            body = await self._body(scope, receive)
        except Refused as refusal:
            self._counts.results[refusal.result] += 1
            await _respond(send, refusal.result, {"error": str(refusal)})
        except BrokenOff:
            self._counts.results["malformed"] += is_push
        else:
            if is_push:
                await self._push(scope["state"]["peer"], body, send)
            else:
                await self._api(scope, _replay(body), send)

    async def _push(self, peer: Peer | None, body: bytes, send: Send) -> None:
        try:
            result, content = self._take(peer, body)
        except Refused as refusal:
            result, content = refusal.result, {"error": str(refusal)}
        except (Forbidden, Superseded, NoRoom) as refusal:
            result, content = RESULT_OF[type(refusal)], {"error": str(refusal)}
        self._counts.results[result] += 1
        await _respond(send, result, content)

    def _take(self, peer: Peer | None, body: bytes) -> tuple[str, dict[str, Any]]:
        snapshot, unknown_fields = parse(body)
        self._counts.unknown_fields += unknown_fields
        self._orders.forget_ended()  # First: this snapshot may begin a new run.
        is_news = self._store.put(snapshot, peer)
        if is_news and self._events is not None:
            self._events.see(snapshot)
        said = {
            "level": self._orders.level_for(snapshot, peer),
            "late": self._jobs.late_stage(snapshot),
            **(self._told(snapshot) if is_news else {}),
        }
        answer = {name: value for name, value in said.items() if value is not None}
        return "accepted" if is_news else "ignored", answer

    def _admit(self, scope: Scope) -> None:
        """Raise Refused for a request that may not post here."""
        if _header(scope, b"origin"):
            # A browser on the node reaches loopback on behalf of any site.
            raise Refused("forbidden", "Web pages may not post here: leave out the Origin header.")
        if self._token is None or scope["state"]["peer"] is not None:
            return
        if not self._token.is_shown_in(_header(scope, b"authorization").decode("latin-1")):
            raise Refused(
                "unauthorized",
                "This listener wants the token of its --ingest.token-file; "
                "set RANKSKEW_TOKEN_FILE to a file with the same token.",
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body; raises Refused as soon as it is, or is announced to be, too large."""
        announced = _header(scope, b"content-length")
        if announced and int(announced) > self._max_body_bytes:  # The parser ensures digits.
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BrokenOff
            body += message["body"]
            if len(body) > self._max_body_bytes:
                raise self._too_large()
            if not message["more_body"]:
                return bytes(body)

    def _too_large(self) -> Refused:
        return Refused(
            "oversized",
            f"The body is larger than {self._max_body_bytes} bytes; a snapshot is far smaller, "
            "so check what is sent, or raise --ingest.max-body-bytes.",
        )


def _api(orders: Orders, dry_run: DryRun) -> FastAPI:
    app = FastAPI(
        title="rankskew ingest",
        summary="Where ranks push snapshots, and their owners control them.",
        version=__version__,
        docs_url=None,  # Not on a listener that takes POSTs; openapi.json is enough.
        redoc_url=None,
        redirect_slashes=False,
    )
    say_what_is_wrong(
        app,
        f"POST to {SNAPSHOT_PATH}, {DRY_RUN_PATH} and {CONTROL_PATH}, and GET of "
        "/openapi.json; the web listener serves the rest",
    )
    describe_snapshots(app)
    serve_dry_runs(app, dry_run)

    @app.post(CONTROL_PATH, responses=REFUSALS)
    async def control(order: Order, request: Request) -> Ordered:
        """Set how much the probes of your own job's ranks on this node time."""
        return Ordered(orders.give(order, own(request.state.peer)))

    return app


async def _respond(send: Send, result: str, content: Mapping[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    if result == "unauthorized":
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": RESULTS[result], "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _header(scope: Scope, name: bytes) -> bytes:
    """Return the last header called *name*, in lower case; empty if there is none."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return next((value for each, value in reversed(headers) if each == name), b"")


def _replay(body: bytes) -> Receive:
    """Return a receive() for an application, with *body* already read."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
