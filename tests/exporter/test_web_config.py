"""The web configuration file: read as the exporter toolkit does, in force at once, and obeyed."""

import asyncio
import base64
import ssl
from pathlib import Path

import bcrypt
import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from exporter.errors import UsageError
from exporter.web.auth import BasicAuth
from exporter.web.config import WebConfig
from exporter.web.reload import WatchedConfig
from tests.exporter.running import make_certificate

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


INSIDE = PlainTextResponse("inside")


def hashed(password: str) -> bytes:
    # 4 is bcrypt's least cost: the tests need a true hash, not a slow one.
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4))


def basic(login: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(login.encode()).decode()}


def client(app: ASGIApp, address: str = "10.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://node")


def get(app: ASGIApp, headers: dict[str, str] | None = None) -> httpx.Response:
    async def send() -> httpx.Response:
        async with client(app) as scraper:
            return await scraper.get("/", headers=headers)

    return asyncio.run(send())


@pytest.fixture(scope="module")
def users() -> dict[str, bytes]:
    passwords = {"prometheus": "right", "zoë": "pässword", "long": "x" * 72}
    return {user: hashed(each) for user, each in passwords.items()}


@pytest.fixture
def guarded(users: dict[str, bytes]) -> BasicAuth:
    return BasicAuth(INSIDE, users)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords that bcrypt was asked about."""
    checked: list[bytes] = []
    check = bcrypt.checkpw

    def checkpw(password: bytes, hashed: bytes) -> bool:
        checked.append(password)
        return check(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", checkpw)
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
    guarded: BasicAuth, checked: list[bytes], headers: dict[str, str], is_login: bool
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

    assert len(checked) == 2 + 2 * is_login


def test_guesses_from_one_address_hold_up_no_other(
    guarded: BasicAuth, checked: list[bytes]
) -> None:
    """Fifty wrong logins wait in line; a right one from elsewhere does not wait behind them."""

    async def flood() -> None:
        async with (
            client(guarded) as guesser,
            client(guarded, "10.0.0.2") as scraper,
            asyncio.TaskGroup() as guesses,
        ):
            for number in range(50):
                guesses.create_task(guesser.get("/", headers=basic(f"prometheus:{number}")))
            while not checked:
                await asyncio.sleep(0)
            answer = await scraper.get("/", headers=basic("prometheus:right"))
            assert answer.text == "inside"
            assert len(checked) <= 5

    asyncio.run(flood())
    assert len(checked) == 51
