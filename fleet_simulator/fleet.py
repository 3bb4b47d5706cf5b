"""The nodes of a simulated fleet behind one address: /node/NAME/ is the exporter of a node."""

import html
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from exporter.scrape.exposition import ScrapeRequest, headers, packed, wanted
from fleet_simulator.faults import EARLIER_SECONDS, Silence
from fleet_simulator.node import SimulatedNode
from fleet_simulator.plan import JobPlan
from fleet_simulator.training import JoinedFigures, Judged, Training

CLUSTER: Final = "simulated"
# The past of a large fleet is only two times: one before the first faults, and one after them.
HISTORY_SECONDS: Final = 600
HISTORY_STEP_SECONDS: Final = 10
NODES_WITH_HISTORY: Final = 128
# In a larger fleet many nodes repeat the readings of others: readings for all would take a core.
NODES_WITH_READINGS: Final = 512
# How many usual nodes of a job have their own readings; its other usual nodes repeat these.
ORIGINALS: Final = 8
# How long readings are repeated. The window of a rate in Prometheus may be off by as many seconds.
FRESH_SECONDS: Final = 1.0


class Copies:
    """Makes pages of nodes from the page of *original*; *now* returns the simulation's time."""

    def __init__(self, original: SimulatedNode, now: Callable[[], float]) -> None:
        self._original = original
        self._now = now
        names = "|".join(re.escape(name) for name in original.names)
        self._named = re.compile(rf"(?<=[{{,])({names})")
        self._rendered: dict[ScrapeRequest, tuple[float, list[str]]] = {}

    async def page(self, node: SimulatedNode, wanted: ScrapeRequest) -> bytes:
        """Return the page of *node*, which has as many ranks as the original."""
        pieces = list(await self._pieces(replace(wanted, seconds=None, compressed=False)))
        renamed = dict(zip(self._original.names, node.names, strict=True))
        # The names are every second piece.
        pieces[1::2] = [renamed[name] for name in pieces[1::2]]
        return packed("".join(pieces).encode(), wanted)

    async def _pieces(self, wanted: ScrapeRequest) -> list[str]:
        now = self._now()
        if wanted in self._rendered:
            rendered, pieces = self._rendered[wanted]
            if now - rendered < FRESH_SECONDS:
                return pieces
        self._original.advance(now)
        page, _ = await self._original.exposition.page(wanted)
        pieces = self._named.split(page.decode())
        self._rendered[wanted] = now, pieces
        return pieces


def copied(nodes: Sequence[SimulatedNode], now: Callable[[], float]) -> dict[str, Copies]:
    """Return, by name, the Copies for each of a job's *nodes* that repeats another's readings."""
    usual = [node for node in nodes if node.is_usual]
    originals = [Copies(node, now) for node in usual[:ORIGINALS]]
    return {
        node.name: originals[number % ORIGINALS] for number, node in enumerate(usual[ORIGINALS:])
    }


class Fleet:
    """The nodes of the jobs in *plans*, with their files below *directory*.

    *detail* is each node's --series.detail.
    """

    def __init__(
        self,
        plans: Sequence[JobPlan],
        directory: Path,
        clock: Callable[[], float] = time.time,
        detail: frozenset[str] = frozenset(),
    ) -> None:
        self._clock = clock
        self._began = clock()
        number = sum(plan.nodes for plan in plans)
        self.nodes: dict[str, SimulatedNode] = {}
        # By name, the Copies for nodes that do not make their own pages.
        self.copies: dict[str, Copies] = {}
        for plan in plans:
            training = Training(plan)
            said, past = (Judged(training), JoinedFigures()), _past(number)
            nodes = [
                SimulatedNode(training, *said, n, directory / str(n), self._began, past, detail)
                for n in range(plan.first_node, plan.first_node + plan.nodes)
            ]
            self.nodes |= {node.name: node for node in nodes}
            if number > NODES_WITH_READINGS:
                self.copies |= copied(nodes, self.now)
        self._apps: dict[str, ASGIApp] = {}

    def now(self) -> float:
        """Return the seconds since the start of the simulation."""
        return self._clock() - self._began

    def app(self, name: str) -> ASGIApp:
        """Return the exporter of the node *name* as of now; raises KeyError if there is none."""
        node = self.nodes[name]
        node.advance(self.now())
        if node.has(Silence.DOWN):
            return PlainTextResponse("This exporter is simulated to be down.\n", 503)
        if name not in self._apps:
            self._apps[name] = node.app()
        return self._apps[name]

    def targets(self, address: str) -> list[dict[str, Any]]:
        """Return the nodes as Prometheus' HTTP service discovery wants them, at *address*."""
        return [
            {
                "targets": [address],
                "labels": {
                    "__metrics_path__": f"/node/{node.name}/metrics",
                    "instance": node.instance,
                    "cluster": CLUSTER,
                },
            }
            for node in self.nodes.values()
        ]


def _past(nodes: int) -> list[float]:
    if nodes <= NODES_WITH_HISTORY:
        return [float(at) for at in range(-HISTORY_SECONDS, 1, HISTORY_STEP_SECONDS)]
    return [-EARLIER_SECONDS - HISTORY_STEP_SECONDS, 0.0]


def fleet_app(fleet: Fleet, title: str) -> ASGIApp:
    """Return the application: a list of the nodes, discovery, and each node's own exporter."""

    async def listing(_: Request) -> HTMLResponse:
        return HTMLResponse(_listing(fleet, title))

    async def discovery(request: Request) -> JSONResponse:
        return JSONResponse(fleet.targets(request.headers.get("host", "127.0.0.1")))

    async def ready(_: Request) -> PlainTextResponse:
        return PlainTextResponse("The simulated fleet is ready.\n")

    async def node(scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"]
        path = scope["path"].removeprefix(scope["root_path"])
        if name not in fleet.nodes:
            answer = PlainTextResponse(f"There is no node {name[:40]!a}; / lists them.\n", 404)
            await answer(scope, receive, send)
        elif path == "/metrics" and name in fleet.copies and not scope["query_string"]:
            asked = wanted([], Headers(scope=scope))
            page = await fleet.copies[name].page(fleet.nodes[name], asked)
            await Response(page, headers=headers(asked))(scope, receive, send)
        else:
            inner = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
            await fleet.app(name)(inner, receive, send)

    return Starlette(
        routes=[
            Route("/", listing),
            Route("/sd", discovery),
            Route("/-/ready", ready),
            Mount("/node/{name}", node),
        ]
    )


def _listing(fleet: Fleet, title: str) -> str:
    links = "".join(
        f'<li><a href="node/{name}/">{name}</a>: {html.escape(node.about)}</li>'
        for name, node in fleet.nodes.items()
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'><title>rankskew simulate</title>"
        f"<h1>Simulated fleet</h1><p>{html.escape(title)}</p><ul>{links}</ul></html>"
    )
