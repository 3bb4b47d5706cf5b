"""The web configuration file is read as the exporter toolkit does, or refused in one line."""

import ssl
from pathlib import Path

import pytest

from exporter.errors import UsageError
from exporter.web.config import WebConfig, read_web_config
from exporter.web.reload import WatchedConfig
from tests.exporter.certificates import make_certificate

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with server.crt and server.key, where each test writes its file."""
    directory = tmp_path_factory.mktemp("web")
    make_certificate(directory, "server")
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
        f"""
        tls_server_config:
          cert_file: server.crt
          key_file: server.key
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


def test_tls_asks_for_no_client_certificate_by_default(directory: Path) -> None:
    """A certificate and a key are enough for TLS 1.2 and later."""
    config = load(directory, "tls_server_config: {cert_file: server.crt, key_file: server.key}")

    assert config.tls is not None
    assert config.tls.verify_mode is ssl.CERT_NONE
    assert config.tls.minimum_version is ssl.TLSVersion.TLSv1_2


def test_versions_and_ciphers_are_those_of_the_file(directory: Path) -> None:
    """The names are Go's, as in every file for the toolkit."""
    config = load(
        directory,
        """
        tls_server_config:
          cert_file: server.crt
          key_file: server.key
          max_version: TLS12
          cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]
          prefer_server_cipher_suites: false
        """,
    )

    assert config.tls is not None
    assert config.tls.maximum_version is ssl.TLSVersion.TLSv1_2
    assert [
        cipher["name"] for cipher in config.tls.get_ciphers() if cipher["protocol"] == "TLSv1.2"
    ] == ["ECDHE-ECDSA-CHACHA20-POLY1305"]
    assert not config.tls.options & ssl.OP_CIPHER_SERVER_PREFERENCE


def test_every_problem_is_found_in_one_reading(directory: Path) -> None:
    """Whoever mends a file need not start the exporter once for each mistake."""
    path = directory / "web.yaml"
    path.write_text(
        f"""
        tls_server_config: {{cert_file: absent.crt, key_file: server.key}}
        basic_auth_users: {{a: plain, b: {HASH}, c: text}}
        """
    )

    reading = read_web_config(path)
    assert [
        problem.removeprefix(f"--web.config.file: {path}: ") for problem in reading.problems
    ] == [
        f"cannot load {directory}/absent.crt, {directory}/server.key or client_ca_file: "
        "No such file or directory",
        "the password of user 'a' is not a bcrypt hash; see htpasswd -nBC 10",
        "the password of user 'c' is not a bcrypt hash; see htpasswd -nBC 10",
    ]
    assert reading.files == (path, directory / "absent.crt", directory / "server.key")


PAIR = "cert_file: server.crt, key_file: server.key"


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
        (
            "tls_server_config: {cert: x}",
            "cert is not supported; put it into a file, and name that",
        ),
        (
            "tls_server_config: {certificate: x}",
            "has an unknown key 'certificate'; known: cert_file",
        ),
        ("tls_server_config: {cert_file: 1, key_file: x}", "cert_file must be a path"),
        (
            "tls_server_config: {cert_file: absent.crt, key_file: server.key}",
            "cannot load .*absent.crt, .*: No such file or directory",
        ),
        (
            f"tls_server_config: {{{PAIR}, min_version: TLS10}}",
            "min_version 'TLS10' is not supported, because TLS 1.0 and 1.1 are broken; use TLS12",
        ),
        (f"tls_server_config: {{{PAIR}, min_version: TLS11}}", "min_version 'TLS11' is not supp"),
        (f"tls_server_config: {{{PAIR}, min_version: SSL30}}", "'SSL30' is not supported; use one"),
        (f"tls_server_config: {{{PAIR}, max_version: TLS11}}", "max_version 'TLS11' is not supp"),
        (
            f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}",
            "max_version TLS12 is below min_version TLS13",
        ),
        (
            f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]}}",
            "cipher_suites: 'TLS_RSA_WITH_AES_128_CBC_SHA' is not supported; use one of TLS_ECDHE",
        ),
        (f"tls_server_config: {{{PAIR}, cipher_suites: 1}}", "cipher_suites must be a list"),
        (
            f"tls_server_config: {{{PAIR}, curve_preferences: [CurveP521]}}",
            "curve_preferences is not supported; remove it",
        ),
        (
            f"tls_server_config: {{{PAIR}, client_allowed_sans: [prometheus]}}",
            "client_allowed_sans is not supported; give the clients a CA of their own",
        ),
        (
            f"tls_server_config: {{{PAIR}, prefer_server_cipher_suites: maybe}}",
            "prefer_server_cipher_suites must be true or false",
        ),
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: RequireAnyClientCert}}",
            "client_auth_type 'RequireAnyClientCert' is not supported; use one of NoClientCert",
        ),
        (f"tls_server_config: {{{PAIR}, client_ca_file: server.crt}}", "need each other"),
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
            "client_ca_file and a verifying client_auth_type need each other",
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


def test_key_of_another_certificate_is_refused(directory: Path) -> None:
    """A key that does not belong to the certificate is found at the start, not at a request."""
    make_certificate(directory, "other")

    with pytest.raises(UsageError, match=r"cannot load .*server\.crt, .*other\.key"):
        load(directory, "tls_server_config: {cert_file: server.crt, key_file: other.key}")


def test_file_that_is_not_there_is_refused(directory: Path) -> None:
    """A mistyped path is a usage error, not a listener without protection."""
    with pytest.raises(UsageError, match=r"cannot read .*absent.yaml: No such file"):
        WatchedConfig(directory / "absent.yaml")


def test_binary_file_is_refused(directory: Path) -> None:
    """A file that is not text is said to be so."""
    path = directory / "binary.yaml"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(UsageError, match="is not UTF-8 text"):
        WatchedConfig(path)
