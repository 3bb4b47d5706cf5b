"""Servers that ask for a token, a tenant or a certificate, and what they are shown."""

import ssl
from base64 import b64decode
from contextlib import AbstractContextManager, nullcontext
from email.message import Message
from pathlib import Path
from typing import Any, Final

import pytest

from rankskew.client import fetch
from rankskew.client.fetch import Access, Trouble, get_json
from rankskew.client.prometheus import Prometheus
from tests.exporter.running import make_certificate
from tests.rankskew.client.servers import Answer, Sent, anyone, json_answer, serving, serving_all

TOKEN: Final = "authorization: {credentials: s3cret}"
TENANT: Final = ("X-Scope-OrgID", "team-a")


def access(directory: Path, config: str, *headers: tuple[str, str]) -> Access:
    file = directory / "http.yaml"
    file.write_text(config)
    return Access(file, headers)


class Listener:
    """Answers {} to everyone, and remembers the *headers* of each request."""

    def __init__(self, *answers: Answer) -> None:
        self.headers: list[Message] = []
        self._answers = list(answers)

    def serve(self) -> AbstractContextManager[str]:
        def answer(path: str, form: dict[str, str]) -> Answer:
            return self._answers.pop(0) if self._answers else json_answer({"path": path} | form)

        return serving(answer, self._hear)

    def _hear(self, headers: Message) -> None:
        self.headers.append(headers)


def protected(headers: Message) -> Answer | None:
    if headers["Authorization"] == "Bearer s3cret":
        return None
    return 401, "text/plain", b"s3cret is what you should have said"


@pytest.mark.parametrize(
    ("config", "header"),
    [
        (TOKEN, "Bearer s3cret"),
        ("authorization: {type: Token, credentials: s3cret}", "Token s3cret"),
        ("authorization: {credentials_file: secret}", "Bearer s3cret"),
        ("basic_auth: {username: me, password: s3cret}", "me:s3cret"),
        ("basic_auth: {username: me, password_file: secret}", "me:s3cret"),
        ("{}", None),
        ("", None),
    ],
)
def test_token_or_password_is_sent(tmp_path: Path, config: str, header: str | None) -> None:
    """As Prometheus' own clients do, files that are named are beside the file."""
    (tmp_path / "secret").write_text("s3cret\n")
    server = Listener()
    with server.serve() as url:
        get_json(url, "/x", access=access(tmp_path, config))
    (sent,) = (each["Authorization"] for each in server.headers)
    if sent is not None and sent.startswith("Basic "):
        sent = b64decode(sent.removeprefix("Basic ")).decode()

    assert sent == header


def test_token_that_is_renewed_is_read_again(tmp_path: Path) -> None:
    """A pod's token lives for an hour, and rankskew top runs for longer: the old one is refused."""
    (tmp_path / "secret").write_text("old")
    who = access(tmp_path, "authorization: {credentials_file: secret}")
    valid = ["old"]

    def refuse(headers: Message) -> Answer | None:
        return (
            None if headers["Authorization"] == f"Bearer {valid[0]}" else (401, "text/plain", b"")
        )

    with serving(lambda path, form: json_answer({}), refuse) as url:
        get_json(url, "/x", access=who)
        valid[0] = "new"
        with pytest.raises(Trouble, match="refuses our token"):
            get_json(url, "/x", access=who)
        (tmp_path / "secret").write_text("new")
        assert get_json(url, "/x", access=who) == {}
        valid[0] = "newer"
        (tmp_path / "secret").unlink()
        with pytest.raises(Trouble, match=r"cannot read .*/secret: No such file or directory\."):
            get_json(url, "/x", access=who)


def test_tenant_is_sent(tmp_path: Path) -> None:
    """From the file and from the command line; a query is posted as a form as before."""
    config = "http_headers: {X-Scope-OrgID: {values: [team-a]}, X-Key: {secrets: [s3cret]}}"
    server = Listener()
    with server.serve() as url:
        said = get_json(url, "/x", {"query": "up > 0"}, access=access(tmp_path, config))
        get_json(url, "/x", access=Access(None, (TENANT,)))

    assert said == {"path": "/x", "query": "up > 0"}
    assert [each["X-Scope-OrgID"] for each in server.headers] == ["team-a", "team-a"]
    assert [each["X-Key"] for each in server.headers] == ["s3cret", None]


def test_file_counts_more_than_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two headers of that name would be refused."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password other\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    server = Listener()
    with server.serve() as url:
        get_json(url, "/x", access=access(tmp_path, TOKEN))

    assert server.headers[0].get_all("Authorization") == ["Bearer s3cret"]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            "authorization: {credentials: s3cret2}",
            r"our token or password \(401 Unauthorized\): give",
        ),
        ("", r"us .*: give a token .* --http\.config\.file"),
    ],
)
def test_refusal_is_one_sentence(tmp_path: Path, config: str, problem: str) -> None:
    """Without the token, and without what the server says of it."""
    with (
        serving(lambda path, form: json_answer({}), protected) as url,
        pytest.raises(Trouble, match=f"refuses {problem}") as no,
    ):
        get_json(url, "/x", access=access(tmp_path, config))

    assert "s3cret" not in str(no.value)


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


def test_redirects_come_to_an_end() -> None:
    with (
        serving(lambda path, form: (302, "text/plain", b"/x")) as url,
        pytest.raises(Trouble, match=r"does not answer: it redirects us again and again\."),
    ):
        get_json(url, "/x")


def test_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no server fills the memory; what is cut off is no JSON."""
    monkeypatch.setattr(fetch, "LARGEST_ANSWER_BYTES", 9)
    with serving(lambda path, form: json_answer("x" * 100)) as url:
        assert get_json(url, "/x") is None


# ---- Proxies -----------------------------------------------------------------------------------


def test_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the login that its URL has, but not for hosts that no_proxy lists."""
    server = Listener()
    with server.serve() as url:
        monkeypatch.setenv("http_proxy", url.replace("//", "//me:s3cret@"))
        monkeypatch.setenv("no_proxy", "near.invalid")
        assert get_json("http://far.invalid", "/x") == {"path": "http://far.invalid/x"}
        with pytest.raises(Trouble, match="its name is not known"):
            get_json("http://near.invalid", "/x")
    sent = server.headers[0]["Proxy-Authorization"].removeprefix("Basic ")

    assert b64decode(sent) == b"me:s3cret"


def test_proxy_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not the server's fault; the login of the proxy is not repeated."""
    monkeypatch.setenv("http_proxy", "http://me:s3cret@127.0.0.1:1")
    with pytest.raises(Trouble, match=r"its proxy: Connection refused\.$") as no:
        get_json("http://far.invalid", "/x")

    assert "s3cret" not in str(no.value)


# ---- TLS ---------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """The server's, for localhost and 127.0.0.1, and its key."""
    return make_certificate(tmp_path, "server")


def server_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
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
    certificate: tuple[Path, Path],
    config: str,
    trusted: bool,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """The CA of a company, another name in the certificate, or none of it, without a warning."""
    told = r"its certificate is not trusted \(.*\); .* tls_config"
    with (
        serving(lambda path, form: json_answer({}), anyone, server_tls(certificate)) as url,
        nullcontext() if trusted else pytest.raises(Trouble, match=told),
    ):
        assert get_json(url, "/x", access=access(tmp_path, config)) == {}

    assert not recwarn.list


def test_server_is_shown_a_certificate(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    make_certificate(tmp_path, "us")
    context = server_tls(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(tmp_path / "us.crt")
    ours = "tls_config: {ca_file: server.crt, cert_file: us.crt, key_file: us.key}"
    with serving(lambda path, form: json_answer({}), anyone, context) as url:
        assert get_json(url, "/x", access=access(tmp_path, ours)) == {}
        with pytest.raises(Trouble):
            get_json(url, "/x", access=access(tmp_path, "tls_config: {ca_file: server.crt}"))


def test_queries_of_a_run_share_a_connection(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report asks a hundred times: it reads its files once, and greets the server once."""
    made: list[ssl.SSLContext] = []
    make = ssl.create_default_context

    def counted(**options: Any) -> ssl.SSLContext:
        made.append(make(**options))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    ports: list[int] = []

    def answer(sent: Sent) -> Answer:
        ports.append(sent.port)
        return json_answer({"status": "success", "data": {"result": []}})

    who = access(tmp_path, "tls_config: {ca_file: server.crt}")
    with serving_all(answer, server_tls(certificate)) as url:
        prometheus = Prometheus(url, access=who)
        prometheus.query("up")
        prometheus.query("up", at=1_700_000_000.0)
        prometheus.query_range("up", 0.0, 60.0, 15.0)

    assert (len(ports), len(set(ports)), len(made)) == (3, 1, 1)


def test_connection_that_was_kept_may_be_gone() -> None:
    """As when a server was restarted, or a proxy forgot it: it is asked on another one."""
    ports: list[int] = []

    def answer(sent: Sent) -> Answer:
        ports.append(sent.port)
        if len(ports) == 2:
            raise ConnectionAbortedError  # Closes it without an answer.
        return json_answer({})

    who = Access()
    with serving_all(answer) as url:
        get_json(url, "/x", access=who)
        assert get_json(url, "/x", access=who) == {}

    assert ports[0] == ports[1] != ports[2]
