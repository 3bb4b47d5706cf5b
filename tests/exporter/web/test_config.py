"""The web configuration file is read as the exporter toolkit does, or refused in one line."""

import ssl
from pathlib import Path

import pytest

from exporter.errors import UsageError
from exporter.web.config import WebConfig, read_web_config
from exporter.web.reload import WatchedConfig
from tests.exporter.certificates import make_certificate

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
TLS = """\
tls_server_config:
  cert_file: server.crt
  key_file: server.key
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with server.crt and server.key, where each test writes its file."""
    directory = tmp_path_factory.mktemp("web")
    for name in ("server", "other"):
        make_certificate(directory, name)
    return directory


def load(directory: Path, text: str) -> WebConfig:
    path = directory / "web.yaml"
    path.write_text(text)
    return WatchedConfig(path).current()


@pytest.mark.parametrize("text", ["", "{}", "basic_auth_users:\n", "# nothing\n"])
def test_empty_file_protects_nothing(directory: Path, text: str) -> None:
    """A file without settings is a listener without protection, as with the toolkit."""
    assert load(directory, text) == WebConfig()


def test_complete_file_is_understood(directory: Path) -> None:
    """TLS with client certificates, users and headers are all taken from the file."""
    config = load(
        directory,
        f"""{TLS}
  client_ca_file: server.crt
  client_auth_type: RequireAndVerifyClientCert
  min_version: TLS13
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
    assert config.tls.minimum_version is ssl.TLSVersion.TLSv1_3
    assert config.users == {"prometheus": HASH.encode()}
    assert config.headers == {
        "X-Frame-Options": "deny",
        "Strict-Transport-Security": "max-age=31536000",
    }


def test_certificate_and_key_are_enough_for_tls(directory: Path) -> None:
    config = load(directory, TLS)

    assert config.tls is not None
    assert config.tls.verify_mode is ssl.CERT_NONE
    assert config.tls.minimum_version is ssl.TLSVersion.TLSv1_2


def test_versions_and_ciphers_are_those_of_the_file(directory: Path) -> None:
    """The names are Go's, as in every file for the toolkit."""
    config = load(
        directory,
        f"""{TLS}
  max_version: TLS12
  cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]
  prefer_server_cipher_suites: false
""",
    )

    assert config.tls is not None
    assert config.tls.maximum_version is ssl.TLSVersion.TLSv1_2
    ciphers = [each["name"] for each in config.tls.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert ciphers == ["ECDHE-ECDSA-CHACHA20-POLY1305"]
    assert not config.tls.options & ssl.OP_CIPHER_SERVER_PREFERENCE


def test_every_problem_is_found_in_one_reading(directory: Path) -> None:
    """Whoever mends a file need not start the exporter once for each mistake."""
    path = directory / "web.yaml"
    path.write_text(
        "tls_server_config: {cert_file: absent.crt, key_file: server.key}\n"
        f"basic_auth_users: {{a: plain, b: {HASH}, c: text}}\n"
    )
    reading = read_web_config(path)

    assert [each.removeprefix(f"--web.config.file: {path}: ") for each in reading.problems] == [
        f"cannot load {directory}/absent.crt, {directory}/server.key or client_ca_file: "
        "No such file or directory",
        "the password of user 'a' is not a bcrypt hash; see htpasswd -nBC 10",
        "the password of user 'c' is not a bcrypt hash; see htpasswd -nBC 10",
    ]
    assert reading.files == (path, directory / "absent.crt", directory / "server.key")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "the file must be a mapping"),
        ("a: b: c", "is not YAML: "),
        ("rate_limit: {}", "the file: rate_limit is not supported; limit requests in a proxy"),
        ("http: {}", "the file has an unknown key 'http'; known: tls_server_config"),
        ("tls_server_config: 1", "tls_server_config must be a mapping"),
        ("tls_server_config: {}", "tls_server_config needs both cert_file and key_file"),
        ("tls_server_config: {cert_file: server.crt}", "needs both cert_file and key_file"),
        ("tls_server_config: {cert: x}", "cert is not supported; put it into a file, and name"),
        ("tls_server_config: {certificate: x}", "unknown key 'certificate'; known: cert_file"),
        ("tls_server_config: {cert_file: 1, key_file: x}", "cert_file must be a path"),
        (TLS.replace("server.crt", "absent.crt"), "cannot load .*absent.crt, .*: No such file or"),
        (TLS.replace("server.key", "other.key"), r"cannot load .*server\.crt, .*other\.key"),
        *(
            (f"{TLS}  {options}\n", complaint)
            for options, complaint in (
                ("min_version: TLS10", "'TLS10' .* TLS 1.0 and 1.1 are broken; use TLS12"),
                ("min_version: TLS11", "min_version 'TLS11' is not supp"),
                ("min_version: SSL30", "'SSL30' is not supported; use one"),
                ("max_version: TLS11", "max_version 'TLS11' is not supp"),
                ("min_version: TLS13\n  max_version: TLS12", "max_version TLS12 is below min_ver"),
                (
                    "cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]",
                    "'TLS_RSA_WITH_AES_128_CBC_SHA' is not supported; use one of TLS_ECDHE",
                ),
                ("cipher_suites: 1", "cipher_suites must be a list"),
                ("curve_preferences: [CurveP521]", "curve_preferences is not supported; remove it"),
                ("client_allowed_sans: [a]", "client_allowed_sans .*; give the clients a CA of"),
                ("prefer_server_cipher_suites: maybe", "_suites must be true or false"),
                ("client_auth_type: RequireAnyClientCert", "not supported; use one of NoClientC"),
                ("client_ca_file: server.crt", "need each other"),
                ("client_auth_type: RequireAndVerifyClientCert", "client_ca_file .* need each oth"),
            )
        ),
        ("basic_auth_users: {prometheus: secret}", "'prometheus' is not a bcrypt hash"),
        (f"basic_auth_users: {{a: {HASH.replace('$10$', '$32$')}}}", "'a' is not a bcrypt hash"),
        (f"basic_auth_users: {{a: {HASH.replace('Q', '!')}}}", "'a' is not a bcrypt hash"),
        ("http_server_config: {headers: {X-Other: y}}", "has an unknown key 'X-Other'"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\nb"}}', "must be one line of ASCII"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    directory: Path, text: str, complaint: str
) -> None:
    """A setting that would be ignored is an error instead, which names file and key."""
    with pytest.raises(UsageError, match=complaint) as caught:
        load(directory, text)

    assert str(caught.value).startswith("--web.config.file: ")
    assert "web.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A mistyped path is a usage error, not a listener without protection."""
    path = tmp_path / "web.yaml"
    with pytest.raises(UsageError, match=r"cannot read .*web.yaml: No such file"):
        WatchedConfig(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        WatchedConfig(path)
