"""The ingest listener: takes snapshots from training processes, and orders from the operator."""

from collections.abc import MutableMapping

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from exporter.control import CONTROL_PATH, NobodyThere, Orders, WrongOrder, parse_order
from exporter.ingest import RESULTS, Refused, parse
from exporter.peers import uid_of
from exporter.ranks import Forbidden, NoRoom, RankStore, Superseded
from exporter.token_file import TokenFile
from rank_probe.snapshot import SNAPSHOT_PATH


def no_results() -> dict[str, int]:
    """Return a count of 0 for every result, so that each series exists from the start."""
    return dict.fromkeys(RESULTS, 0)


def ingest_app(
    store: RankStore,
    results: MutableMapping[str, int],
    max_body_bytes: int,
    token: TokenFile | None = None,
) -> FastAPI:
    """Return the application that puts snapshots into *store* and counts them in *results*.

    With a *token*, who comes over TCP must show it; the Unix socket says itself who comes.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    orders = Orders(store)

    async def body_of(request: Request) -> bytes:
        # Read before the token is checked: a client that is cut off in the middle of its body
        # would not see the answer.
        body = await _body(request, max_body_bytes)
        _check_token(request, token)
        return body

    @app.post(SNAPSHOT_PATH)
    async def take(request: Request) -> Response:
        try:
            snapshot = parse(await body_of(request))
            uid = uid_of(request.scope)
            orders.forget_ended()  # Before this snapshot, which may begin a new run of the name.
            is_news = store.put(snapshot, uid)
            level = orders.level_for(snapshot, uid)
            result, answer = ("accepted" if is_news else "ignored"), _asked(level)
        except Refused as refusal:
            result, answer = refusal.result, {"error": str(refusal)}
        except Forbidden as refusal:
            result, answer = "forbidden", {"error": str(refusal)}
        except Superseded as refusal:
            result, answer = "superseded", {"error": str(refusal)}
        except NoRoom as refusal:
            result, answer = "no_room", {"error": str(refusal)}
        results[result] += 1
        return JSONResponse(answer, RESULTS[result], _headers(result))

    @app.post(CONTROL_PATH)
    async def control(request: Request) -> Response:
        try:
            order = parse_order(await body_of(request))
            return JSONResponse({"ranks": orders.give(order, uid_of(request.scope))})
        except Refused as refusal:
            if refusal.result == "unauthorized":
                results["unauthorized"] += 1
            return _refused(refusal, RESULTS[refusal.result], _headers(refusal.result))
        except WrongOrder as refusal:
            return _refused(refusal, 422)
        except NobodyThere as refusal:
            return _refused(refusal, 404)
        except Forbidden as refusal:
            return _refused(refusal, 403)

    @app.exception_handler(HTTPException)
    async def elsewhere(_: Request, error: HTTPException) -> Response:
        served = f"POST {SNAPSHOT_PATH} and POST {CONTROL_PATH}"
        sentence = f"Nothing is served here but {served}; use the web listener."
        return JSONResponse({"error": sentence}, error.status_code, error.headers)

    return app


def _asked(level: str | None) -> dict[str, str]:
    return {} if level is None else {"level": level}


def _refused(why: Exception, status: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": str(why)}, status, headers)


def _headers(result: str) -> dict[str, str] | None:
    return {"WWW-Authenticate": "Bearer"} if result == "unauthorized" else None


def _check_token(request: Request, token: TokenFile | None) -> None:
    if token is None or uid_of(request.scope) is not None:
        return
    if not token.is_shown_in(request.headers.get("authorization", "")):
        raise Refused(
            "unauthorized",
            "This listener wants the token of its --ingest.token-file; "
            "set RANKSKEW_TOKEN_FILE to a file with the same token.",
        )


async def _body(request: Request, max_bytes: int) -> bytes:
    """Return the body, holding no more of it than *max_bytes* and one read."""
    too_large = Refused(
        "oversized",
        f"The body is larger than {max_bytes} bytes; a snapshot is far smaller, "
        "so check what is sent, or raise --ingest.max-body-bytes.",
    )
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise too_large
    except ClientDisconnect as error:
        raise Refused("malformed", "The body ended early; send it whole.") from error
    return bytes(body)
