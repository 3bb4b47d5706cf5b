"""The web listener: /metrics, the live page and whether the exporter is well."""

from collections.abc import Callable
from importlib.resources import files
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from exporter.live.page import LiveView
from exporter.scrape.exposition import Exposition, wanted

READABLE: Final = ["GET", "HEAD"]

# Why something is not so, None when it is.
Why = Callable[[], str | None]


def web_app(
    exposition: Exposition, live: LiveView, why_not_ready: Why, why_not_healthy: Why
) -> Starlette:
    """Return the application. Every handler runs in the event loop, where the rank store lives."""
    page = (files("exporter") / "live" / "index.html").read_text()

    async def metrics(request: Request) -> Response:
        names = request.query_params.getlist("collect[]")
        want = wanted(names, _headers(request))
        complaint = exposition.unknown(want)
        if complaint is not None:
            return PlainTextResponse(f"{complaint}\n", 400)
        body, headers = await exposition.page(want)
        return Response(body, headers=headers)

    async def landing(_: Request) -> Response:
        return HTMLResponse(page)

    async def live_summary(_: Request) -> Response:
        return JSONResponse(live.summary(), headers={"Cache-Control": "no-store"})

    async def healthy(_: Request) -> Response:
        return _well("healthy", why_not_healthy())

    async def ready(_: Request) -> Response:
        return _well("ready", why_not_ready())

    handlers = {
        "/metrics": metrics,
        "/": landing,
        "/api/v1/live": live_summary,
        "/-/healthy": healthy,
        "/-/ready": ready,
    }
    app = Starlette(
        routes=[Route(path, handler, methods=READABLE) for path, handler in handlers.items()]
    )
    # A redirect from /metrics/ would lead to whatever the Host header says.
    app.router.redirect_slashes = False
    return app


def _well(what: str, why_not: str | None) -> Response:
    if why_not is None:
        return PlainTextResponse(f"The exporter is {what}.\n")
    return PlainTextResponse(f"{why_not}\n", 503)


def _headers(request: Request) -> dict[str, str]:
    """Return the headers; one that was sent in several lines as one."""
    return {name: ",".join(request.headers.getlist(name)) for name in set(request.headers)}
