"""The web listener shows metrics in the format asked for, the page, and how the exporter is."""

import asyncio
import dataclasses
from collections.abc import Iterable

import httpx
import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from exporter.live.gpus import GpuView, RankOf
from exporter.live.jobs import JobView
from exporter.live.page import LiveSummary, LiveView
from exporter.live.ranks import RankView
from exporter.live.sentences import LateView
from exporter.live.summary import JobVerdict
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.scrape.exposition import Exposition
from exporter.scrape.sampling import Scrape
from exporter.web.app import web_app
from tests.exporter.snapshots import snapshot


class Fixed:
    """Yields one gauge, named after it."""

    interval_seconds = 0.0

    def __init__(self, name: str, value: float) -> None:
        self.name = name
        self._value = value

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(f"rankskew_{self.name}", "A reading.", value=self._value)


class Web:
    """The web application, called as a server would call it."""

    def __init__(self) -> None:
        self.store = RankStore()
        self.gpus_visible: int | None = None
        self.live = LiveView(NodeJobs(self.store), lambda: self.gpus_visible)
        self.live.sample(1_000.0, 1_000.0)
        self.why_not_ready: str | None = "The first readings are not available yet."
        self.why_not_healthy: str | None = None
        # A clock that stands still: no page here is too late.
        scrape = Scrape([Fixed("one", 4.5), Fixed("two", 2.0)], monotonic=lambda: 0.0)
        self._app = web_app(
            Exposition(scrape),
            self.live,
            lambda: self.why_not_ready,
            lambda: self.why_not_healthy,
        )

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
    assert "rankskew_one 4.5\n" in answer.text


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
    values = {family.name: [sample.value for sample in family.samples] for family in families}
    assert (values["rankskew_one"], values["rankskew_two"]) == ([4.5], [2.0])


def test_metrics_are_compressed_when_asked(web: Web) -> None:
    """A scraper that takes gzip gets the same page compressed."""
    answer = web.get("/metrics", **{"accept-encoding": "gzip"})

    assert answer.headers["content-encoding"] == "gzip"
    assert answer.text == web.get("/metrics").text


def test_exporter_is_healthy_before_it_is_ready(web: Web) -> None:
    """Health shows that the process answers; readiness says in a sentence what it waits for."""
    assert web.get("/-/healthy").status_code == 200
    waiting = web.get("/-/ready")
    assert (waiting.status_code, waiting.text) == (
        503,
        "The first readings are not available yet.\n",
    )
    web.why_not_ready = None
    assert web.get("/-/ready").status_code == 200


def test_exporter_that_needs_a_restart_is_not_healthy(web: Web) -> None:
    """Liveness fails with the reason, while metrics are served as before."""
    web.why_not_healthy = "No GPU has answered."
    answer = web.get("/-/healthy")

    assert (answer.status_code, answer.text) == (503, "No GPU has answered.\n")
    assert web.get("/metrics").status_code == 200


def test_collectors_can_be_chosen(web: Web) -> None:
    """`collect[]`, plain or percent-encoded, shows only what it names."""
    one = web.get("/metrics?collect[]=one").text
    both = web.get("/metrics?collect%5B%5D=one&collect[]=two&collect[]=one").text

    assert "rankskew_one 4.5\n" in one
    assert "rankskew_two" not in one
    assert "rankskew_two 2.0\n" in both
    assert both.count("# TYPE rankskew_one ") == 1


@pytest.mark.parametrize("name", ["gpu", "", "one,two"])
def test_unknown_collector_is_one_sentence(web: Web, name: str) -> None:
    """A name that is unknown or switched off is a 400 that lists the existing ones."""
    answer = web.get(f"/metrics?collect[]=one&collect[]={name}")

    assert answer.status_code == 400
    assert answer.text == f"No collector is called {name!r}; enabled collectors: one, two.\n"


@pytest.mark.parametrize("timeout", ["", "soon", "nan", "inf", "-1", "0", "0.1", "10"])
def test_any_scrape_timeout_gets_a_page(web: Web, timeout: str) -> None:
    """A header that makes no sense is ignored, and a short one still leaves half of itself."""
    answer = web.get("/metrics", **{"x-prometheus-scrape-timeout-seconds": timeout})

    assert "rankskew_one 4.5\n" in answer.text


def test_landing_page_is_the_live_page(web: Web) -> None:
    """A browser gets a page that works, with a link to the metrics."""
    answer = web.get("/")

    assert answer.headers["content-type"].startswith("text/html")
    assert 'href="metrics"' in answer.text
    assert "api/v1/live" in web.get("/static/live.js").text


def test_pages_files_are_fetched_once(web: Web) -> None:
    """Scripts and styles are kept by the browser, and sent again only if they have changed."""
    first = web.get("/static/live.js")
    again = web.get("/static/live.js", **{"if-none-match": first.headers["etag"]})

    assert first.headers["content-type"].startswith("text/javascript")
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")
    assert web.get("/static/live.js", **{"if-none-match": '"old"'}).content == first.content


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fpage.py", "__init__.py", ""])
def test_no_other_file_is_served(web: Web, name: str) -> None:
    """Only what belongs to the page leaves its folder."""
    assert web.get(f"/static/{name}").status_code == 404


def test_runbooks_are_served(web: Web) -> None:
    """The runbook of an alert is here, with what is known of the job, and so is the list."""
    web.store.put(snapshot(job_id="llama", rank=2, pid=20_775))
    web.live.sample(1_001.0, 1_001.0)
    answer = web.get("/runbooks/RankskewStraggler?job=llama&rank=2")

    assert answer.headers["content-type"].startswith("text/html")
    assert "py-spy dump --pid 20775" in answer.text
    assert "RankskewStraggler" in web.get("/runbooks/").text
    assert web.get("/runbooks/RankskewStraggler.md").status_code == 200


def test_unknown_runbook_is_one_sentence(web: Web) -> None:
    """A name that is none is a 404 that says where all of them are."""
    answer = web.get("/runbooks/RankskewNothing")

    assert (answer.status_code, answer.text) == (
        404,
        "There is no such runbook; /runbooks/ lists all.\n",
    )


def test_live_summary_shows_the_ranks(web: Web) -> None:
    """What the live page asks for is JSON about the ranks held now, and is never cached."""
    web.store.put(snapshot(job_id="llama"))
    web.live.sample(1_001.0, 1_001.0)
    answer = web.get("/api/v1/live")

    assert [job["job_id"] for job in answer.json()["jobs"]] == ["llama"]
    assert answer.headers["cache-control"] == "no-store"


def test_live_summary_comes_without_history_if_asked(web: Web) -> None:
    """Who polls every second leaves out what changes every ten; all else is the same."""
    web.store.put(snapshot(job_id="llama"))
    web.live.sample(1_001.0, 1_001.0)
    whole = web.get("/api/v1/live").json()
    short = web.get("/api/v1/live?history=false").json()
    for rank in whole["jobs"][0]["ranks"]:
        assert rank.pop("history") == []

    assert short == whole


def test_large_live_summary_is_compressed_when_asked(web: Web) -> None:
    """A browser takes gzip; a script that does not gets the same in plain."""
    for rank in range(16):
        web.store.put(snapshot(rank=rank, world_size=16))
    web.live.sample(1_001.0, 1_001.0)
    packed = web.get("/api/v1/live", **{"accept-encoding": "gzip"})

    assert packed.headers["content-encoding"] == "gzip"
    assert packed.json() == web.get("/api/v1/live").json()


@pytest.mark.parametrize("visible", [None, 0, 8])
def test_live_summary_counts_the_gpus(web: Web, visible: int | None) -> None:
    """The page distinguishes a node without GPUs from one whose driver has not answered yet."""
    web.gpus_visible = visible
    web.live.sample(1_001.0, 1_001.0)

    assert web.get("/api/v1/live").json()["gpus_visible"] == visible


@pytest.mark.parametrize("path", ["/metrics", "/", "/-/healthy"])
def test_head_is_answered_without_a_body(web: Web, path: str) -> None:
    """A load balancer may ask with HEAD."""
    assert web.get(path, method="HEAD").status_code == 200


@pytest.mark.parametrize("path", ["/v1/snapshots", "/v1/control", "/v1/gpus", "/redoc"])
def test_nothing_else_is_served(web: Web, path: str) -> None:
    """Neither snapshots nor orders are taken on a public address."""
    assert web.get(path).status_code == 404
    assert web.get(path, method="POST").status_code == 404


def test_live_summary_is_described(web: Web) -> None:
    """Who builds on it finds each field of a job and of a rank, and a page to try it on."""
    description = web.get("/openapi.json").json()
    schemas = description["components"]["schemas"]

    assert "/openapi.json" in web.get("/docs").text
    assert description["paths"].keys() == {"/metrics", "/api/v1/live", "/-/healthy", "/-/ready"}
    for each in (LiveSummary, JobView, JobVerdict, RankView, LateView, GpuView, RankOf):
        names = {field.name for field in dataclasses.fields(each)}
        assert schemas[each.__name__]["properties"].keys() == names


def test_no_redirect_to_what_the_client_says(web: Web) -> None:
    """/metrics/ is not a page, and redirects nobody to another host."""
    answer = web.get("/metrics/", host="evil.example")

    assert answer.status_code == 404
    assert "location" not in answer.headers
