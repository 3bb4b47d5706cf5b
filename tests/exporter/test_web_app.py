"""The web listener shows metrics in the format asked for, the page, and how the exporter is."""

import asyncio

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from exporter.live import LiveView
from exporter.ranks import RankStore
from exporter.web_app import web_app
from tests.exporter.snapshots import snapshot


class Web:
    """The web application, called as a server would call it."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        Gauge("rankskew_reading", "A reading.", registry=registry).set(4.5)
        self.store = RankStore()
        self.gpus_visible: int | None = None
        self.live = LiveView(self.store, lambda: self.gpus_visible)
        self.live.sample(1_000.0, 1_000.0)
        self.is_ready = False
        self._app = web_app(registry, self.live, lambda: self.is_ready)

    def get(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        return asyncio.run(self._send(method, path, headers))

    async def _send(self, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            client.headers.clear()
            return await client.request(method, path, headers=headers)


@pytest.fixture
def web() -> Web:
    return Web()


def test_metrics_are_text_by_default(web: Web) -> None:
    """A plain request gets the Prometheus text format, uncompressed."""
    answer = web.get("/metrics")

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "content-encoding" not in answer.headers
    assert "rankskew_reading 4.5\n" in answer.text


def test_metrics_are_openmetrics_when_asked(web: Web) -> None:
    """What Prometheus sends as Accept is answered in OpenMetrics, which parses."""
    accept = (
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
        "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    )
    answer = web.get("/metrics", accept=accept)

    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    families = text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call] # upstream
    assert [family.samples[0].value for family in families] == [4.5]


def test_metrics_are_compressed_when_asked(web: Web) -> None:
    """A scraper that takes gzip gets the same page compressed."""
    answer = web.get("/metrics", **{"accept-encoding": "gzip"})

    assert answer.headers["content-encoding"] == "gzip"
    assert answer.text == web.get("/metrics").text


def test_exporter_is_healthy_before_it_is_ready(web: Web) -> None:
    """Health says that the process answers; readiness waits for the first readings."""
    assert web.get("/-/healthy").status_code == 200
    assert web.get("/-/ready").status_code == 503
    web.is_ready = True
    assert web.get("/-/ready").status_code == 200


def test_landing_page_is_the_live_page(web: Web) -> None:
    """A browser gets a page that works, with a link to the metrics."""
    answer = web.get("/")

    assert answer.headers["content-type"].startswith("text/html")
    assert "/metrics" in answer.text
    assert "api/v1/live" in answer.text


def test_live_summary_shows_the_ranks(web: Web) -> None:
    """What the live page asks for is JSON about the ranks held now, and is never cached."""
    web.store.put(snapshot(job_id="llama"))
    web.live.sample(1_001.0, 1_001.0)
    answer = web.get("/api/v1/live")

    assert [job["job_id"] for job in answer.json()["jobs"]] == ["llama"]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("visible", [None, 0, 8])
def test_live_summary_counts_the_gpus(web: Web, visible: int | None) -> None:
    """The page can tell a node without GPUs from one whose driver has not answered yet."""
    web.gpus_visible = visible
    web.live.sample(1_001.0, 1_001.0)

    assert web.get("/api/v1/live").json()["gpus_visible"] == visible


@pytest.mark.parametrize("path", ["/metrics", "/", "/-/healthy"])
def test_head_is_answered_without_a_body(web: Web, path: str) -> None:
    """A load balancer may ask with HEAD."""
    assert web.get(path, method="HEAD").status_code == 200


@pytest.mark.parametrize("path", ["/v1/snapshots", "/docs", "/redoc", "/openapi.json"])
def test_nothing_else_is_served(web: Web, path: str) -> None:
    """Snapshots are not taken on a public address, and nothing describes the API to strangers."""
    assert web.get(path).status_code == 404
    assert web.get(path, method="POST").status_code == 404
