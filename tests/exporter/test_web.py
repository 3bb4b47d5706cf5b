"""The web listener shows metrics in the format asked for, the page, and how the exporter is.

Its configuration file is read as the exporter toolkit does, in force at once, and obeyed.
"""

import asyncio
import dataclasses
import ssl
from pathlib import Path
from unittest import mock

import bcrypt
import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from exporter.errors import UsageError
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
from exporter.vocabulary.advice import advice
from exporter.web.app import web_app
from exporter.web.auth import BasicAuth
from exporter.web.config import WebConfig
from exporter.web.health import GONE_SECONDS, GpusGone, Ready
from exporter.web.reload import WatchedConfig
from generators import alert_rules
from tests.exporter.node import Clock, FixedNvml
from tests.exporter.running import basic, make_certificate
from tests.exporter.snapshots import snapshot
from tests.exporter.test_scrape import FakeCollector


def client(app: ASGIApp, address: str = "10.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://node")


def get(
    app: ASGIApp, headers: dict[str, str] | None = None, method: str = "GET", path: str = "/"
) -> httpx.Response:
    async def send() -> httpx.Response:
        async with client(app) as scraper:
            scraper.headers.clear()
            return await scraper.request(method, path, headers=headers)

    return asyncio.run(send())


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
        return get(self._app, names, method, path)


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


# ---- The configuration file ----------------------------------------------------------------------

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
TLS = """\
tls_server_config:
  cert_file: server.crt
  key_file: server.key
"""


@pytest.fixture(scope="module")
def config_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificates and keys server and other, where tests write the file."""
    made = tmp_path_factory.mktemp("web")
    for name in ("server", "other"):
        make_certificate(made, name)
    return made


def load(config_directory: Path, text: str | None) -> WebConfig:
    path = config_directory / "web.yaml"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text, errors="surrogateescape")
    return WatchedConfig(path).current()


def test_complete_file_is_understood(config_directory: Path) -> None:
    """TLS with client certificates, users and headers; names of versions and ciphers are Go's."""
    config = load(
        config_directory,
        f"""{TLS}
  client_ca_file: server.crt
  client_auth_type: RequireAndVerifyClientCert
  min_version: TLS12
  max_version: TLS12
  cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]
  prefer_server_cipher_suites: false
http_server_config:
  http2: true
  headers:
    X-Frame-Options: deny
    Strict-Transport-Security: max-age=31536000
basic_auth_users:
  prometheus: {HASH}
""",
    )

    assert config.tls is not None
    assert config.tls.verify_mode is ssl.CERT_REQUIRED
    assert config.tls.maximum_version is ssl.TLSVersion.TLSv1_2
    ciphers = [each["name"] for each in config.tls.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert ciphers == ["ECDHE-ECDSA-CHACHA20-POLY1305"]
    assert not config.tls.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert config.users == {"prometheus": HASH.encode()}
    assert config.headers == {
        "X-Frame-Options": "deny",
        "Strict-Transport-Security": "max-age=31536000",
    }
    newer = load(config_directory, f"{TLS}  min_version: TLS13\n").tls
    assert newer is not None
    assert newer.minimum_version is ssl.TLSVersion.TLSv1_3
    # As with the toolkit, a file without settings protects nothing.
    for empty in ("", "{}", "basic_auth_users:\n"):
        assert load(config_directory, empty) == WebConfig()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "the file must be a mapping"),
        (None, r"cannot read .*web.yaml: No such file"),
        ("\udcff", "is not UTF-8 text"),
        ("a: b: c", "is not YAML: "),
        ("rate_limit: {}", "the file: rate_limit is not supported; limit requests in a proxy"),
        ("http: {}", "the file has an unknown key 'http'; known: tls_server_config"),
        ("tls_server_config: 1", "tls_server_config must be a mapping"),
        ("tls_server_config: {cert_file: server.crt}", "needs both cert_file and key_file"),
        ("tls_server_config: {cert_file: 1, key_file: x}", "cert_file must be a path"),
        (TLS.replace("server.crt", "absent.crt"), "cannot load .*absent.crt, .*: No such file or"),
        (TLS.replace("server.key", "other.key"), r"cannot load .*server\.crt, .*other\.key"),
        *(
            (f"{TLS}  {options}\n", complaint)
            for options, complaint in (
                ("min_version: TLS10", "'TLS10' .* TLS 1.0 and 1.1 are broken; use TLS12"),
                ("min_version: TLS13\n  max_version: TLS12", "max_version TLS12 is below min_ver"),
                ("cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]", "use one of TLS_ECDHE"),
                ("client_auth_type: RequireAnyClientCert", "not supported; use one of NoClientC"),
                ("client_ca_file: server.crt", "need each other"),
                ("client_auth_type: RequireAndVerifyClientCert", "client_ca_file .* need each oth"),
            )
        ),
        ("basic_auth_users: {prometheus: secret}", "'prometheus' is not a bcrypt hash"),
        (f"basic_auth_users: {{a: {HASH.replace('$10$', '$32$')}}}", "'a' is not a bcrypt hash"),
        ("http_server_config: {headers: {X-Other: y}}", "has an unknown key 'X-Other'"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\nb"}}', "must be one line of ASCII"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    config_directory: Path, text: str | None, complaint: str
) -> None:
    """A setting that would be ignored is an error instead, which names file and key."""
    with pytest.raises(UsageError, match=complaint) as caught:
        load(config_directory, text)

    assert str(caught.value).startswith("--web.config.file: ")
    assert "web.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


USERS = f"basic_auth_users: {{a: {HASH}}}"


def test_broken_file_keeps_the_settings_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake neither opens the listener nor closes it, and does not fill the log.

    What is right again applies to the next request, without a restart.
    """
    times = iter([100.0, 160.0])
    file = tmp_path / "web.yaml"
    file.write_text(USERS)
    watched = WatchedConfig(file, lambda: next(times))
    before = watched.current()
    assert before.users == {"a": HASH.encode()}

    file.write_text("basic_auth_users: {a: secret}")
    assert watched.current() is watched.current() is before
    assert (watched.succeeded, watched.succeeded_at) == (False, 100.0)
    (message,) = caplog.messages
    assert "'a' is not a bcrypt hash; " in message
    assert message.endswith("; the previous settings stay in use")

    file.unlink()
    assert watched.current() is before
    file.write_text("")
    assert watched.current().users == {}
    assert (watched.succeeded, watched.succeeded_at) == (True, 160.0)


@pytest.mark.parametrize(("before", "after", "what"), [("", TLS, "added"), (TLS, "", "removed")])
def test_http_does_not_become_https_nor_the_other_way_round(
    config_directory: Path, caplog: pytest.LogCaptureFixture, before: str, after: str, what: str
) -> None:
    """Prometheus would need another scheme in the same second; the file is refused whole."""
    file = config_directory / "web.yaml"
    file.write_text(before)
    watched = WatchedConfig(file)
    kept = watched.current()

    file.write_text(f"{after}\n{USERS}")
    assert watched.current() is kept
    assert f"tls_server_config was {what}: restart the exporter to serve http" in caplog.text


@pytest.fixture
def guarded() -> BasicAuth:
    passwords = {"prometheus": b"right", "zoë": "pässword".encode(), "long": b"x" * 72}
    # 4 is bcrypt's least cost: the tests need a true hash, not a slow one.
    hashes = {user: bcrypt.hashpw(each, bcrypt.gensalt(4)) for user, each in passwords.items()}
    return BasicAuth(PlainTextResponse("inside"), hashes)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """What checks passwords, and counts them."""
    checked = mock.Mock(wraps=bcrypt.checkpw)
    monkeypatch.setattr(bcrypt, "checkpw", checked)
    return checked


@pytest.mark.parametrize(
    ("headers", "is_login"),
    [
        ({}, False),
        (basic("prometheus:wrong"), True),
        (basic("nobody:right"), True),
        (basic("prometheu:sright"), True),  # Where the password begins is remembered too.
        (basic("long:" + "x" * 73), True),  # bcrypt reads no more than 72 bytes.
        (basic("prometheus"), False),
        ({"authorization": "Basic %%%"}, False),
        ({"authorization": "Bearer right"}, False),
    ],
)
def test_anything_but_a_right_login_is_refused(
    guarded: BasicAuth, checked: mock.Mock, headers: dict[str, str], is_login: bool
) -> None:
    """A wrong, missing or garbled login gets a 401 and not a byte of the application.

    bcrypt, slow on purpose, is not paid at every scrape; a wrong login always pays it. So does an
    unknown user: the time an answer takes does not tell which exist.
    """
    for login in ("prometheus:right", "zoë:pässword") * 2:
        assert get(guarded, basic(login)).text == "inside"
    for _ in range(2):
        answer = get(guarded, headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert "inside" not in answer.text

    assert checked.call_count == 2 + 2 * is_login


def test_guesses_from_one_address_hold_up_no_other(guarded: BasicAuth, checked: mock.Mock) -> None:
    """Fifty wrong logins wait in line; a right one from elsewhere does not wait behind them."""

    async def flood() -> None:
        async with (
            client(guarded) as guesser,
            client(guarded, "10.0.0.2") as scraper,
            asyncio.TaskGroup() as guesses,
        ):
            for number in range(50):
                guesses.create_task(guesser.get("/", headers=basic(f"prometheus:{number}")))
            while not checked.called:
                await asyncio.sleep(0)
            answer = await scraper.get("/", headers=basic("prometheus:right"))
            assert answer.text == "inside"
            assert checked.call_count <= 5

    asyncio.run(flood())
    assert checked.call_count == 51
