"""The web listener: /metrics, the live page and whether the exporter is well."""

import gzip
from collections.abc import Callable
from importlib.resources import files
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from exporter.live import LiveView

# Level 1 makes a page a little larger than level 9 and takes a tenth of its time.
GZIP_LEVEL: Final = 1
READABLE: Final = ["GET", "HEAD"]


def web_app(registry: CollectorRegistry, live: LiveView, is_ready: Callable[[], bool]) -> FastAPI:
    """Return the application. Every handler runs in the event loop, where the rank store lives."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    page = (files("exporter") / "page" / "index.html").read_text()

    @app.api_route("/metrics", methods=READABLE)
    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(_header(request, "accept"))
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        body = encode(registry)
        if gzip_accepted(_header(request, "accept-encoding")):
            body = gzip.compress(body, GZIP_LEVEL)
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    @app.api_route("/", methods=READABLE)
    async def landing() -> Response:
        return HTMLResponse(page)

    @app.api_route("/api/v1/live", methods=READABLE)
    async def live_summary() -> Response:
        return JSONResponse(live.summary(), headers={"Cache-Control": "no-store"})

    @app.api_route("/-/healthy", methods=READABLE)
    async def healthy() -> Response:
        return PlainTextResponse("The exporter is healthy.\n")

    @app.api_route("/-/ready", methods=READABLE)
    async def ready() -> Response:
        if is_ready():
            return PlainTextResponse("The exporter is ready.\n")
        return PlainTextResponse("The first readings are not in yet.\n", 503)

    return app


def _header(request: Request, name: str) -> str:
    """Return a header that may be sent in several lines, as one."""
    return ",".join(request.headers.getlist(name))
