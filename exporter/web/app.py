"""The web listener: /metrics, the live page with its JSON and runbooks, and health checks."""

import gzip
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import gzip_accepted

from exporter.bundle import bundled
from exporter.live.page import LiveSummary, LiveView
from exporter.scrape.exposition import GZIP_LEVEL, Exposition, wanted
from exporter.scrapers import Scrapers
from exporter.vocabulary.words import CAUSES
from exporter.web.health import FAILED, WhyNot, health_answer
from exporter.web.static import StaticFiles, tagged
from rank_probe.version import __version__

# A smaller answer fits into a few packets anyway.
WORTH_COMPRESSING: Final = 4096

PAGE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "In the format that Accept asks for",
        "content": {"text/plain": {}, "application/openmetrics-text": {}},
    },
    400: {"description": "No such collector", "content": {"text/plain": {}}},
}


def web_app(
    exposition: Exposition,
    live: LiveView,
    why_not_ready: WhyNot,
    why_not_healthy: WhyNot,
    scrapers: Scrapers | None = None,
) -> FastAPI:
    """Return the application; it tells *scrapers* who fetches /metrics.

    Every handler runs in the event loop, where the rank store lives.
    """
    static, runbooks = StaticFiles(), _runbooks()
    app = FastAPI(
        title="rankskew exporter",
        summary="Metrics and live state of the training ranks and GPUs of one node.",
        version=__version__,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        # A redirect from /metrics/ would point to whatever the Host header names.
        redirect_slashes=False,
    )

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", response_class=PlainTextResponse, responses=PAGE)
    async def metrics(
        request: Request, collect: Annotated[list[str] | None, Query(alias="collect[]")] = None
    ) -> Response:
        """Return the metrics of this node, of all collectors or only of those in `collect[]`."""
        want = wanted(collect or [], _headers(request))
        complaint = exposition.unknown(want)
        if complaint is not None:
            return PlainTextResponse(f"{complaint}\n", 400)
        body, headers = await exposition.page(want)
        if scrapers is not None and request.client is not None and request.method == "GET":
            scrapers.see(request.client.host, request.headers.get("user-agent", ""))
        return Response(body, headers=headers)

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def landing(request: Request) -> Response:
        """Return the live page."""
        return static.answer("index.html", request)

    @app.head("/static/{name}", include_in_schema=False)
    @app.get("/static/{name}", include_in_schema=False)
    async def static_file(name: str, request: Request) -> Response:
        """Return a style, script or picture of the pages."""
        return static.answer(name, request)

    @app.head("/api/v1/live", include_in_schema=False)
    @app.get("/api/v1/live", response_model=LiveSummary)
    async def live_summary(request: Request) -> Response:
        """Return the data of the live page: each job's verdict, this node's ranks and its GPUs."""
        return _json(live.json(), request)

    @app.head("/runbooks/{name}", include_in_schema=False)
    @app.get("/runbooks/{name}", include_in_schema=False)
    async def runbook(name: str, request: Request) -> Response:
        """Return the runbook of an alert, or the playbook for a cause, as Markdown."""
        path = runbooks.get(name.removesuffix(".md"))
        if path is None:
            names = "".join(f"{each}\n" for each in runbooks)
            return PlainTextResponse(f"There is no such runbook; there are:\n{names}", 404)
        return tagged(path.read_bytes(), "text/plain", request)

    @app.head("/-/healthy", include_in_schema=False)
    @app.get("/-/healthy", response_class=PlainTextResponse, responses=FAILED)
    async def healthy() -> Response:
        """Return whether the exporter works; 503 if restarting its container would help."""
        return health_answer("healthy", why_not_healthy())

    @app.head("/-/ready", include_in_schema=False)
    @app.get("/-/ready", response_class=PlainTextResponse, responses=FAILED)
    async def ready() -> Response:
        """Return whether the first readings are in."""
        return health_answer("ready", why_not_ready())

    return app


def _runbooks() -> dict[str, Path]:
    alerts = {path.stem: path for path in sorted(bundled("alerts/runbooks").glob("*.md"))}
    return alerts | dict.fromkeys(CAUSES, bundled("alerts/playbook.md"))


def _json(body: bytes, request: Request) -> Response:
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if len(body) > WORTH_COMPRESSING and gzip_accepted(request.headers.get("accept-encoding", "")):
        body = gzip.compress(body, GZIP_LEVEL)
        headers["Content-Encoding"] = "gzip"
    return Response(body, headers=headers, media_type="application/json")


def _headers(request: Request) -> dict[str, str]:
    """Return the headers; one that was sent in several lines is joined into one."""
    return {name: ",".join(request.headers.getlist(name)) for name in set(request.headers)}
