"""The ingest listener: takes snapshots from training processes, and orders from the operator."""

from dataclasses import dataclass, field
from typing import Any

from exporter.ingest.http import Answer, Request
from exporter.ingest.schema import RESULTS, Refused, parse
from exporter.ingest.token_file import TokenFile
from exporter.operator.gpus import GPUS_PATH, GpuControl
from exporter.operator.levels import CONTROL_PATH, NobodyThere, Orders, WrongOrder, parse_order
from exporter.ranks.limits import NoRoom
from exporter.ranks.store import Forbidden, RankStore, Superseded
from rank_probe.snapshot import SNAPSHOT_PATH


@dataclass(slots=True)
class IngestCounts:
    """How many snapshots ended with each result, and how many fields were left out of them."""

    results: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESULTS, 0))
    unknown_fields: int = 0


class IngestApp:
    """Puts snapshots into *store* and counts them in *counts*. Call from the event loop only.

    With a *token*, who comes over TCP must show it; the Unix socket says itself who comes.
    """

    def __init__(
        self,
        store: RankStore,
        counts: IngestCounts,
        max_body_bytes: int,
        token: TokenFile | None = None,
        gpus: GpuControl | None = None,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self._store = store
        self._counts = counts
        self._token = token
        self._orders = Orders(store)
        self._handlers = {SNAPSHOT_PATH: self._take, CONTROL_PATH: self._control}
        self._gpus = gpus
        if gpus is not None:
            self._handlers[GPUS_PATH] = self._gpu_order

    def answer(self, request: Request) -> Answer:
        """Return the answer to *request*, whose body may be too large, and then is not whole."""
        handle = self._handlers.get(request.path)
        if handle is None:
            return self._elsewhere(404)
        if request.method != "POST":
            return self._elsewhere(405, ("Allow", "POST"))
        if request.origin:
            return self._from_a_browser()
        return handle(request)

    def broken_off(self, request: Request) -> None:
        """Count a snapshot whose connection ended before its body."""
        if request.method == "POST" and request.path == SNAPSHOT_PATH:
            self._counts.results["malformed"] += 1

    def _take(self, request: Request) -> Answer:
        try:
            snapshot, unknown_fields = parse(self._body_of(request))
            self._counts.unknown_fields += unknown_fields
            self._orders.forget_ended()  # Before this snapshot, which may begin a new run.
            is_news = self._store.put(snapshot, request.uid)
            level = self._orders.level_for(snapshot, request.uid)
            result, content = ("accepted" if is_news else "ignored"), _asked(level)
        except Refused as refusal:
            result, content = refusal.result, _error(refusal)
        except Forbidden as refusal:
            result, content = "forbidden", _error(refusal)
        except Superseded as refusal:
            result, content = "superseded", _error(refusal)
        except NoRoom as refusal:
            result, content = "no_room", _error(refusal)
        self._counts.results[result] += 1
        return Answer(RESULTS[result], content, _headers(result))

    def _control(self, request: Request) -> Answer:
        try:
            order = parse_order(self._body_of(request))
            return Answer(200, {"ranks": self._orders.give(order, request.uid)})
        except Refused as refusal:
            return self._refusal(refusal)
        except WrongOrder as refusal:
            return Answer(422, _error(refusal))
        except NobodyThere as refusal:
            return Answer(404, _error(refusal))
        except Forbidden as refusal:
            return Answer(403, _error(refusal))

    def _gpu_order(self, request: Request) -> Answer:
        if self._gpus is None:
            return self._elsewhere(404)
        try:
            body = self._body_of(request)
        except Refused as refusal:
            return self._refusal(refusal)
        return Answer(*self._gpus.answer(body, request.uid))

    def _from_a_browser(self) -> Answer:
        """Return the answer to a page of any site: a browser here would post to loopback for it."""
        self._counts.results["forbidden"] += 1
        return Answer(403, {"error": "Web pages may not post here: leave out the Origin header."})

    def _elsewhere(self, status: int, *headers: tuple[str, str]) -> Answer:
        *paths, last = self._handlers
        served = f"POST to {', '.join(paths)} and {last}"
        sentence = f"Nothing is served here but {served}; use the web listener."
        return Answer(status, {"error": sentence}, headers)

    def _refusal(self, why: Refused) -> Answer:
        """Return the answer to an order that is not even read."""
        if why.result == "unauthorized":
            self._counts.results["unauthorized"] += 1
        return Answer(RESULTS[why.result], _error(why), _headers(why.result))

    def _body_of(self, request: Request) -> bytes:
        """Return the body of a request that may be answered; raises Refused for any other."""
        if request.body_bytes > self.max_body_bytes:
            raise Refused(
                "oversized",
                f"The body is larger than {self.max_body_bytes} bytes; a snapshot is far smaller, "
                "so check what is sent, or raise --ingest.max-body-bytes.",
            )
        if self._token is not None and request.uid is None:
            _check(self._token, request)
        return bytes(request.body)


def _check(token: TokenFile, request: Request) -> None:
    if not token.is_shown_in(request.authorization):
        raise Refused(
            "unauthorized",
            "This listener wants the token of its --ingest.token-file; "
            "set RANKSKEW_TOKEN_FILE to a file with the same token.",
        )


def _asked(level: str | None) -> dict[str, str]:
    return {} if level is None else {"level": level}


def _error(why: Exception) -> dict[str, Any]:
    return {"error": str(why)}


def _headers(result: str) -> tuple[tuple[str, str], ...]:
    return (("WWW-Authenticate", "Bearer"),) if result == "unauthorized" else ()
