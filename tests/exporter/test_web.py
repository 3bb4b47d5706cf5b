"""The web listener shows metrics in the format asked for, the page, and how the exporter is."""

import asyncio
import dataclasses

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from exporter.live.jobs import JobView
from exporter.live.page import GpuView, LiveSummary, LiveView, RankOf
from exporter.live.ranks import RankView
from exporter.live.sentences import LateView
from exporter.live.summary import JobVerdict
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.scrape.exposition import Exposition
from exporter.scrape.sampling import Scrape
from exporter.scrapers import Scrapers
from exporter.web.app import web_app
from exporter.web.health import GONE_SECONDS, GpusGone, Ready
from generators import alert_rules
from rankskew.diagnose.advice import advice
from tests.exporter.node import Clock, FixedNvml
from tests.exporter.snapshots import snapshot
from tests.exporter.test_scrape import FakeCollector


class Web:
    """The web application, called as a server would call it."""

    def __init__(self) -> None:
        self.store = RankStore()
        self.scrapers = Scrapers()
        self.gpus_visible: int | None = None
        self.live = LiveView(NodeJobs(self.store), lambda: self.gpus_visible)
        self.live.sample(1_000.0, 1_000.0)
        self.why_not: dict[str, str | None] = {"ready": None, "healthy": None}
        # A clock that stands still: no page here is too late.
        collectors = [FakeCollector("one", lambda: 4.5), FakeCollector("two", lambda: 2.0)]
        scrape = Scrape(collectors, monotonic=lambda: 0.0)
        self._app = web_app(
            Exposition(scrape),
            self.live,
            lambda: self.why_not["ready"],
            lambda: self.why_not["healthy"],
            scrapers=self.scrapers,
        )

    def get(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        """Send a request; headers are written with _ for -."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return asyncio.run(self._send(method, path, names))

    async def _send(self, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            client.headers.clear()
            return await client.request(method, path, headers=headers)


@pytest.fixture
def web() -> Web:
    return Web()


def test_metrics_are_in_the_format_asked_for(web: Web) -> None:
    """Text by default; what Prometheus sends as Accept gets OpenMetrics, which parses."""
    text = web.get("/metrics")
    assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "rankskew_one 4.5\n" in text.text

    accept = (
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
        "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    )
    answer = web.get("/metrics", accept=accept).text
    families = text_string_to_metric_families(answer)  # type: ignore[no-untyped-call] # upstream
    values = {family.name: [sample.value for sample in family.samples] for family in families}
    assert (values["rankskew_one"], values["rankskew_two"]) == ([4.5], [2.0])
    assert web.get("/metrics", accept_encoding="gzip").headers["content-encoding"] == "gzip"
    web.get("/metrics", "HEAD", user_agent="curl/8")
    assert not web.scrapers.latest()[0].agent.startswith("curl")


@pytest.mark.parametrize("what", ["healthy", "ready"])
def test_health_and_readiness_say_why_not(web: Web, what: str) -> None:
    """An exporter is healthy before it is ready, and the other way round."""
    web.why_not[what] = "No GPU has answered."
    answers = {each: web.get(f"/-/{each}") for each in web.why_not}

    assert answers.pop(what).text == "No GPU has answered.\n"
    (fine,) = answers
    assert answers[fine].text == f"The exporter is {fine}.\n"
    assert [web.get(f"/-/{each}").status_code for each in (what, fine)] == [503, 200]
    for path in ("/metrics", "/", f"/-/{fine}"):  # A load balancer may ask with HEAD.
        assert web.get(path, "HEAD").status_code == 200


def test_collectors_can_be_chosen(web: Web) -> None:
    """`collect[]`, plain or percent-encoded, shows only what it names; others are refused."""
    one = web.get("/metrics?collect[]=one").text
    both = web.get("/metrics?collect%5B%5D=one&collect[]=two&collect[]=one").text

    assert "rankskew_one 4.5\n" in one
    assert "rankskew_two" not in one
    assert "rankskew_two 2.0\n" in both
    assert both.count("# TYPE rankskew_one ") == 1
    for name in ("gpu", "", "one,two"):
        answer = web.get(f"/metrics?collect[]=one&collect[]={name}")
        assert answer.status_code == 400
        assert answer.text == f"No collector is called {name!r}; enabled collectors: one, two.\n"


def test_pages_files_are_fetched_once(web: Web) -> None:
    """Scripts and styles are kept by the browser, and sent again only if they have changed."""
    page = web.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert 'href="metrics"' in page.text
    first = web.get("/static/live.js")
    again = web.get("/static/live.js", if_none_match=first.headers["etag"])
    assert first.headers["content-type"].startswith("text/javascript")
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")
    assert web.get("/static/live.js", if_none_match='"old"').content == first.content


@pytest.mark.parametrize(
    "path",
    [
        *(f"/static/{name}" for name in ("nothing.js", "..%2Fpage.py", "__init__.py", "")),
        *("/v1/snapshots", "/v1/control", "/v1/gpus", "/redoc", "/metrics/"),
    ],
)
def test_nothing_else_is_served(web: Web, path: str) -> None:
    """No other file; neither snapshots nor orders are taken on a public address.

    Nobody is redirected to what a client says.
    """
    for method in ("GET", "POST"):
        answer = web.get(path, method, host="evil.example")
        assert answer.status_code in (404, 405)
        assert "location" not in answer.headers
    assert web.get(path).status_code == 404


def test_runbooks_are_served(web: Web) -> None:
    """The runbook of each alert and the page of each cause, as text, where there is no internet."""
    for name in (*alert_rules.alerts(), *advice()):
        answer = web.get(f"/runbooks/{name}")
        assert answer.headers["content-type"].startswith("text/plain")
        assert name in answer.text
    assert web.get("/runbooks/RankskewStraggler.md").status_code == 200
    unknown = web.get("/runbooks/RankskewNothing")
    assert unknown.status_code == 404
    assert "RankskewStraggler\n" in unknown.text


def test_live_summary_shows_the_ranks(web: Web) -> None:
    """Compressed when asked. A node without GPUs is told from one whose driver has not answered.

    Who builds on it finds each field of a job and of a rank, and a page to try it on.
    """
    for rank in range(16):
        web.store.put(snapshot(rank=rank, world_size=16))
    for web.gpus_visible in (0, None):
        web.live.sample(1_000.0, 1_000.0)
        answer = web.get("/api/v1/live", accept_encoding="gzip")
        assert answer.json()["gpus_visible"] == web.gpus_visible
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["cache-control"] == "no-store"
    assert [job["job_id"] for job in answer.json()["jobs"]] == ["llama"]

    description = web.get("/openapi.json").json()
    assert "/openapi.json" in web.get("/docs").text
    assert description["paths"].keys() == {"/metrics", "/api/v1/live", "/-/healthy", "/-/ready"}
    for each in (LiveSummary, JobView, JobVerdict, RankView, LateView, GpuView, RankOf):
        names = {field.name for field in dataclasses.fields(each)}
        assert description["components"]["schemas"][each.__name__]["properties"].keys() == names


FINE = NodeSample(1.0, 2, gpus=(GpuSample(0, True), GpuSample(1, True)))
ONE_LOST = NodeSample(1.0, 2, gpus=(GpuSample(0, True), GpuSample(1, False)))
ALL_LOST = NodeSample(1.0, 2, gpus=(GpuSample(0, False), GpuSample(1, False)))
NO_DRIVER = NodeSample(1.0, 0)
STILL_ASKED = NodeSample(1.0)


def test_exporter_is_ready_while_it_knows_of_the_gpus() -> None:
    """Metrics report a lost GPU, a missing driver or a release, which an unready node could not.

    A worker that crashed or hangs shows, also long after the start; the first readings are awaited
    once.
    """
    nvml, answers = FixedNvml(FINE), iter([False, *[True] * 9])
    ready = Ready(lambda: next(answers), nvml)
    assert [ready(), ready()] == ["The first readings are not available yet.", None]
    for nvml.sample in (FINE, ONE_LOST, ALL_LOST, NO_DRIVER):
        assert ready() is None
    nvml.sample = None
    assert str(ready()).startswith("The NVML worker does not report: ")
    nvml.released = True
    assert ready() is None
    nvml.sample, nvml.released = STILL_ASKED, False
    assert ready() == "The driver has not listed the GPUs yet."
    assert Ready(lambda: True, None)() is None


@pytest.mark.parametrize("lost", [ALL_LOST, NO_DRIVER])
@pytest.mark.parametrize("between", [(), (None,), (STILL_ASKED,), (ONE_LOST,)])
def test_gpus_that_are_all_gone_for_long_ask_for_a_restart(
    lost: NodeSample, between: tuple[NodeSample | None, ...]
) -> None:
    """A container that lost its devices is replaced after ten minutes; a gap restarts nothing.

    Only all of them, and only what is known to be gone: without a break.
    """
    nvml, clock = FixedNvml(None), Clock()
    gone = GpusGone(nvml, clock)
    for nvml.sample in (FINE, *((lost, *between) if between else ()), lost):
        assert gone() is None
        clock.seconds += GONE_SECONDS - 1
    assert gone() is None
    clock.seconds += 1
    assert str(gone()).startswith("No GPU has answered for 10 minutes, although this process has ")
    nvml.sample = FINE
    assert gone() is None

    # Where nothing was lost a restart would not help: Kubernetes would do it forever.
    for never in (None, FixedNvml(lost)):
        gone = GpusGone(never, clock)
        assert gone() is None
        clock.seconds += 2 * GONE_SECONDS
        assert gone() is None
