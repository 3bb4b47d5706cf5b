"""How servers are asked: tokens, tenants, proxies, certificates; what fails is one sentence."""

import socket
import ssl
from base64 import b64decode
from contextlib import AbstractContextManager, nullcontext
from email.message import Message
from pathlib import Path
from typing import Any, Final

import pytest

from exporter.errors import UsageError
from rankskew.__main__ import main
from rankskew.client import fetch
from rankskew.client.fetch import Access, Trouble, base_url, get_json
from rankskew.client.http_config import read_http_config
from rankskew.client.prometheus import WHOLE, Prometheus, Sample, Series, with_names
from tests.exporter.running import basic, make_certificate
from tests.printed import assert_golden
from tests.rankskew.fake_prometheus import recorded, series
from tests.rankskew.servers import Answer, Sent, json_answer, protected, serving

TOKEN: Final = "authorization: {credentials: s3cret}"
TENANT: Final = ("X-Scope-OrgID", "team-a")


def access(directory: Path, config: str, *headers: tuple[str, str]) -> Access:
    file = directory / "http.yaml"
    file.write_text(config)
    return Access(file, headers)


def nothing(sent: Sent) -> Answer:
    return json_answer({})


class Listener:
    """Answers what it was asked to everyone, and remembers the *headers* of each request."""

    def __init__(self, *answers: Answer) -> None:
        self.headers: list[Message] = []
        self._answers = list(answers)

    def serve(self) -> AbstractContextManager[str]:
        return serving(self._answer)

    def _answer(self, sent: Sent) -> Answer:
        self.headers.append(sent.headers)
        if self._answers:
            return self._answers.pop(0)
        return json_answer({"path": sent.path} | sent.form)


# ---- URLs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("node1:9917", "http://node1:9917"),
        ("http://node1:9917/", "http://node1:9917"),
        ("https://host/node/sim-03/", "https://host/node/sim-03"),
        ("http://[::1]:9917", "http://[::1]:9917"),
        ("-", "http://-"),  # A lone word may be a host.
    ],
)
def test_url_may_be_short(text: str, url: str) -> None:
    assert base_url(text) == url


# ---- Tokens, passwords and tenants ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "headers"),
    [
        (TOKEN, {"Authorization": "Bearer s3cret"}),
        ("authorization: {type: Token, credentials: s3cret}", {"Authorization": "Token s3cret"}),
        ("basic_auth: {username: me, password_file: secret}", basic("me:s3cret")),
        (
            "http_headers: {X-Scope-OrgID: {values: [team-a]}, X-Key: {secrets: [s3cret]}}",
            {"X-Scope-OrgID": "team-a", "X-Key": "s3cret"},
        ),
        ("", {}),
    ],
)
def test_token_password_or_tenant_is_sent(
    tmp_path: Path, config: str, headers: dict[str, str]
) -> None:
    """As Prometheus' own clients do, files that are named are beside the file."""
    (tmp_path / "secret").write_text("s3cret\n")
    server = Listener()
    with server.serve() as url:
        get_json(url, "/x", access=access(tmp_path, config))
    (sent,) = server.headers

    names = {*sent} & {"Authorization", "X-Scope-OrgID", "X-Key"}
    assert {name: sent[name] for name in names} == headers


def test_token_that_is_renewed_is_read_again(tmp_path: Path) -> None:
    """A pod's token lives for an hour, and rankskew top runs for longer: the old one is refused."""
    (tmp_path / "secret").write_text("old")
    who = access(tmp_path, "authorization: {credentials_file: secret}")
    valid = "old"

    def answer(sent: Sent) -> Answer:
        known = sent.headers["Authorization"] == f"Bearer {valid}"
        return json_answer({}) if known else (401, "text/plain", b"")

    with serving(answer) as url:
        get_json(url, "/x", access=who)
        valid = "new"
        with pytest.raises(Trouble, match="refuses our token"):
            get_json(url, "/x", access=who)
        (tmp_path / "secret").write_text("new")
        assert get_json(url, "/x", access=who) == {}
        valid = "newer"
        (tmp_path / "secret").unlink()
        with pytest.raises(Trouble, match=r"cannot read .*/secret: No such file or directory\."):
            get_json(url, "/x", access=who)


def test_password_comes_from_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its host only, as with curl --netrc; the file counts more: two headers would be refused.

    In a URL it would be visible to all users; the message does not repeat it.
    """
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password other\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    server = Listener()
    with server.serve() as url:
        get_json(url, "/x")
        get_json(url.replace("127.0.0.1", "localhost"), "/x")
        get_json(url, "/x", access=access(tmp_path, TOKEN))
    sent = [each.get_all("Authorization") for each in server.headers]

    assert sent[1:] == [None, ["Bearer s3cret"]]
    assert b64decode(str(sent[0]).removeprefix("['Basic ")) == b"me:other"
    with pytest.raises(UsageError, match=r"put it in ~/\.netrc") as refused:
        base_url("http://me:s3cret@node1:9917")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("status", [302, 307])
def test_another_host_gets_nothing_of_ours(tmp_path: Path, status: int) -> None:
    """A redirect may lead anywhere; on the same server the token goes along."""
    other = Listener()
    with other.serve() as there:
        same = (status, "text/plain", b"/there")
        first = Listener(same, (status, "text/plain", f"{there}/away".encode()))
        with first.serve() as url:
            said = get_json(url, "/x", access=access(tmp_path, TOKEN, TENANT))

    assert said == {"path": "/away"}
    assert [each["Authorization"] for each in first.headers] == ["Bearer s3cret"] * 2
    assert [each["X-Scope-OrgID"] for each in first.headers] == ["team-a"] * 2
    assert other.headers[0]["Accept"] == "application/json"
    assert other.headers[0]["Authorization"] is None
    assert other.headers[0]["X-Scope-OrgID"] is None


@pytest.mark.parametrize(
    "command",
    [
        "top --once --exporter {url}",
        "top --once --prometheus {url}",
        "diagnose --exporter {url}",
        "diagnose --prometheus {url}",
        "diagnose --prometheus {url} --at 2026-11-23T07:45Z",
        "compare -40m..-10m --prometheus {url} --job a",
        "report --incidents --prometheus {url}",
        "report --job a --prometheus {url}",
    ],
)
def test_command_takes_a_token_and_a_tenant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """With them it is told what the server knows, here nothing; without them that it refuses.

    What the server says of it, or another token, is not repeated.
    """
    config = tmp_path / "http.yaml"
    given = [f"--http.config.file={config}", "--header=X-Scope-OrgID: team-a"]
    said = []
    with serving(protected) as url:
        for token, options in (("s3cret", given), ("s3cret", []), ("s3cret2", given)):
            config.write_text(f"authorization: {{credentials: {token}}}")
            main([*command.format(url=url).split(), *options])
            said.append(capsys.readouterr().err)

    assert "refuses" not in said[0]
    assert "refuses us (401 Unauthorized): give a token or password with" in said[1]
    assert "refuses our token or password (401 Unauthorized): give" in said[2]
    assert not any("s3cret" in each or "no org id" in each for each in said)


# ---- What is wrong with a file for --http.config.file --------------------------------------------


WRONG: Final = (
    "oauth2: {client_secret: s3cret}",
    "tls_config: {ca: s3cret}",
    "http_headers: {X-Key: {value: s3cret}}",
    "basic_auth: {password: s3cret}",
    "authorization: s3cret",
    "authorization: {type: Basic, credentials: s3cret}",
    "authorization: {type: Bearer}",
    "authorization: {credentials: s3cret, credentials_file: token}",
    "{authorization: {credentials: s3cret}, basic_auth: {username: me, password: s3cret}}",
    r'authorization: {credentials: "s3cret\n2"}',
    "authorization: {credentials_file: absent}",
    "http_headers: {X: {secrets: [s3cret\u00e9]}}",
    "http_headers: {Host: {values: [s3cret]}}",
    "http_headers: {'a b': {values: [s3cret]}}",
    "tls_config: {cert_file: us.crt}",
    "tls_config: {ca_file: http.yaml}",
    "a:\n- s3cret: [",
    "s3cret",
)


def test_problem_is_one_sentence_without_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the flag, the file and the place; no traceback with local variables has one."""
    monkeypatch.chdir(tmp_path)
    file = Path("http.yaml")
    texts = {}
    for config in WRONG:
        file.write_text(config, encoding="utf-8")
        with pytest.raises(UsageError) as refused:
            read_http_config(file)
        said = texts[config] = str(refused.value)
        assert "s3cret" not in said
        assert "\n" not in said
        assert refused.value.__suppress_context__
    file.write_text(TOKEN)

    assert "s3cret" not in repr(read_http_config(file))
    assert_golden("http_config", texts)


# ---- What goes wrong while asking ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "scheme", "problem"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "http", "its answer is not HTTP"),
        ((200, "text/plain", b""), "https", "it does not speak TLS; try http://"),
        ((503, "text/plain", b""), "http", r"answers 503 Service Unavail"),
    ],
)
def test_other_answers_are_told(said: Answer | bytes, scheme: str, problem: str) -> None:
    """Of another protocol, without TLS for https://, and of a server that fails."""
    with serving(lambda sent: said) as url, pytest.raises(Trouble, match=problem):
        get_json(url.replace("http:", f"{scheme}:"), "/x")


def test_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server fills the memory; what is cut off is no JSON. Redirects come to an end too."""
    with (
        serving(lambda sent: (302, "text/plain", b"/x")) as url,
        pytest.raises(Trouble, match=r"does not answer: it redirects us again and again\."),
    ):
        get_json(url, "/x")
    monkeypatch.setattr(fetch, "LARGEST_ANSWER_BYTES", 9)
    with serving(lambda sent: json_answer("x" * 100)) as url:
        assert get_json(url, "/x") is None


def test_silence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and says nothing costs a few seconds; a report has more of them."""
    silence = r"does not answer: no answer within 0 s\."
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Trouble, match=silence):
            Prometheus(url, timeout_seconds=0.05).query("up")
        monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 0.05)
        with pytest.raises(Trouble, match=silence):
            get_json(url, "/x")


def test_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the login of its URL, but not for hosts that no_proxy lists, nor for this machine.

    If it does not answer that is not the server's fault; its login is not repeated.
    """
    server = Listener()
    with server.serve() as url:
        monkeypatch.setenv("http_proxy", url.replace("//", "//me:s3%40cret@"))
        monkeypatch.setenv("no_proxy", "near.invalid")
        assert get_json("http://far.invalid", "/x") == {"path": "http://far.invalid/x"}
        for unknown in ("near.invalid", "node..near.invalid"):
            with pytest.raises(Trouble, match=r"does not answer: its name is not known\."):
                get_json(f"http://{unknown}", "/x")
        monkeypatch.setenv("http_proxy", "http://me:s3cret@127.0.0.1:1")
        assert get_json(url, "/x") == {"path": "/x"}
    with pytest.raises(Trouble, match=r"its proxy: Connection refused\.$") as no:
        get_json("http://far.invalid", "/x")

    sent = server.headers[0]["Proxy-Authorization"].removeprefix("Basic ")
    assert b64decode(sent) == b"me:s3@cret"
    assert "s3cret" not in str(no.value)


# ---- TLS and connections -------------------------------------------------------------------------


@pytest.fixture
def server_tls(tmp_path: Path) -> ssl.SSLContext:
    """The server's, with a certificate for localhost and 127.0.0.1, server.crt."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path, "server"))
    return context


@pytest.mark.parametrize(
    ("config", "trusted"),
    [
        ("tls_config: {ca_file: server.crt}", True),
        ("tls_config: {ca_file: server.crt, server_name: localhost}", True),
        ("tls_config: {insecure_skip_verify: true}", True),
        ("", False),
        ("tls_config: {ca_file: server.crt, server_name: mimir.example.org}", False),
    ],
)
def test_certificate_is_trusted_as_the_file_says(
    tmp_path: Path,
    server_tls: ssl.SSLContext,
    config: str,
    trusted: bool,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """The CA of a company, another name in the certificate, or none of it, without a warning."""
    told = r"its certificate is not trusted \(.*\); .* tls_config"
    with (
        serving(nothing, server_tls) as url,
        nullcontext() if trusted else pytest.raises(Trouble, match=told),
    ):
        assert get_json(url, "/x", access=access(tmp_path, config)) == {}

    assert not recwarn.list


def test_server_is_shown_a_certificate(tmp_path: Path, server_tls: ssl.SSLContext) -> None:
    make_certificate(tmp_path, "us")
    server_tls.verify_mode = ssl.CERT_REQUIRED
    server_tls.load_verify_locations(tmp_path / "us.crt")
    ours = "tls_config: {ca_file: server.crt, cert_file: us.crt, key_file: us.key}"
    with serving(nothing, server_tls) as url:
        assert get_json(url, "/x", access=access(tmp_path, ours)) == {}
        with pytest.raises(Trouble):
            get_json(url, "/x", access=access(tmp_path, "tls_config: {ca_file: server.crt}"))


def test_connection_is_kept_and_may_be_gone() -> None:
    """A report asks a hundred times over one connection.

    After a restart of the server, or where a proxy forgot it, it is asked on another one.
    """
    ports: list[int] = []

    def closing_the_third(sent: Sent) -> Answer:
        ports.append(sent.port)
        if len(ports) == 3:
            raise ConnectionAbortedError  # Closes it without an answer.
        return json_answer({"status": "success", "data": {"result": []}})

    with serving(closing_the_third) as url:
        prometheus = Prometheus(url, access=Access())
        prometheus.query("up")
        prometheus.query("up", at=1_700_000_000.0)
        prometheus.query_range("up", 0.0, 60.0, 15.0)

    assert ports[0] == ports[1] == ports[2] != ports[3]


# ---- Prometheus ----------------------------------------------------------------------------------


def test_queries_are_asked_for_times_and_keep_numbers_only() -> None:
    """Without a time, Prometheus takes now. NaN is no number."""
    points = [[0, "1"], [15, "NaN"], [30, "2"]]
    lines = [{"metric": {"rank": "3"}, "values": points}, {"metric": {}, "values": []}]
    up = [{"metric": {"__name__": "up", "a": "b"}, "value": [12.5, "1"]}]
    asked: list[tuple[str, dict[str, str]]] = []

    def answer(sent: Sent) -> Answer:
        asked.append((sent.path, sent.form))
        result = lines if sent.path.endswith("range") else up
        return json_answer({"status": "success", "data": {"result": result}})

    with serving(answer) as url:
        server = Prometheus(url)
        found, _ = server.query("up", 12.5), server.query("up")
        ranged = server.query_range("x", 0, 30, 15)

    assert (found, server.now) == ([Sample("up", {"a": "b"}, 1.0)], 12.5)
    assert ranged == [Series("", {"rank": "3"}, [(0.0, 1.0), (30.0, 2.0)]), Series("", {}, [])]
    assert (ranged[0]["rank"], ranged[0]["none"]) == ("3", "")
    assert asked == [
        ("/api/v1/query", {"query": "up", "time": "12.500", **WHOLE}),
        ("/api/v1/query", {"query": "up", **WHOLE}),
        (
            "/api/v1/query_range",
            {"query": "x", "start": "0.000", "end": "30.000", "step": "15"} | WHOLE,
        ),
    ]


@pytest.mark.parametrize(
    "data", [{}, {"result": 1}, {"result": ["broken"]}, {"result": [{"metric": {}, "value": [1]}]}]
)
def test_other_servers_are_no_prometheus(data: dict[str, Any]) -> None:
    with (
        serving(lambda sent: json_answer({"status": "success", "data": data})) as url,
        pytest.raises(Trouble, match=r"answers, but it is not a Prometheus\."),
    ):
        Prometheus(url).query("x")


def test_addresses_become_names_of_the_same_cluster() -> None:
    """Private addresses are the same in every cluster, and one without a name stays.

    Whoever relabels instance pays no query.
    """
    prometheus = recorded(
        *(
            series("rankskew_exporter_build_info", job_id="", **labels)
            for labels in (
                {"instance": "10.0.0.5:9917", "nodename": "gpu-5"},
                {"instance": "10.0.0.5:9917", "nodename": "other", "cluster": "us"},
                {"instance": "[fd00::6]:9917", "nodename": "gpu-6"},
            )
        )
    )
    instances = ("gpu-1:9917", "10.0.0.5:9917", "[fd00::6]:9917", "10.0.0.7:9917", "")
    samples = [Sample("s", {"cluster": "eu", "instance": each}, 1.0) for each in instances]
    elsewhere = Sample("s", {"cluster": "us", "instance": "10.0.0.5:9917"}, 1.0)
    with prometheus.serve() as url:
        found = with_names(Prometheus(url), [*samples, elsewhere])
        assert with_names(Prometheus(url), samples[:1]) == samples[:1]

    assert [each["instance"] for each in found] == [
        *("gpu-1:9917", "gpu-5", "gpu-6", "10.0.0.7:9917", "", "other")
    ]
    (form,) = prometheus.asked
    assert form["query"].startswith("last_over_time(rankskew_exporter_build_info{instance=~")
    assert "5:9917|" in form["query"]
    assert "gpu-1" not in form["query"]
