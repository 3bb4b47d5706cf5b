"""The ingest listener: takes snapshots from the training processes of this node, nothing else."""

from collections.abc import MutableMapping

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from exporter.ingest import RESULTS, Refused, parse
from exporter.peers import uid_of
from exporter.ranks import Forbidden, NoRoom, RankStore, Superseded
from rank_probe.snapshot import SNAPSHOT_PATH


def no_results() -> dict[str, int]:
    """Return a count of 0 for every result, so that each series exists from the start."""
    return dict.fromkeys(RESULTS, 0)


def ingest_app(store: RankStore, results: MutableMapping[str, int], max_body_bytes: int) -> FastAPI:
    """Return the application that puts snapshots into *store* and counts them in *results*."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.post(SNAPSHOT_PATH)
    async def take(request: Request) -> Response:
        try:
            snapshot = parse(await _body(request, max_body_bytes))
            is_news = store.put(snapshot, uid_of(request.scope))
            result, answer = ("accepted" if is_news else "ignored"), {}
        except Refused as refusal:
            result, answer = refusal.result, {"error": str(refusal)}
        except Forbidden as refusal:
            result, answer = "forbidden", {"error": str(refusal)}
        except Superseded as refusal:
            result, answer = "superseded", {"error": str(refusal)}
        except NoRoom as refusal:
            result, answer = "no_room", {"error": str(refusal)}
        results[result] += 1
        return JSONResponse(answer, RESULTS[result])

    @app.exception_handler(HTTPException)
    async def elsewhere(_: Request, error: HTTPException) -> Response:
        sentence = f"Nothing is served here but POST {SNAPSHOT_PATH}; use the web listener."
        return JSONResponse({"error": sentence}, error.status_code, error.headers)

    return app


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
