"""What is wrong with a file for --http.config.file is one sentence without a secret."""

from pathlib import Path

import pytest

from exporter.errors import UsageError
from rankskew.client.http_config import read_http_config

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("oauth2: {client_secret: s3cret}", "oauth2 is not supported here"),
        ("tls_config: {ca: s3cret}", "tls_config.ca is not supported here"),
        (
            "http_headers: {X-Key: {value: s3cret}}",
            "http_headers.X-Key.value is not supported here",
        ),
        ("basic_auth: {password: s3cret}", "basic_auth.username is missing"),
        ("authorization: s3cret", "authorization is wrong: input should be a valid dictionary"),
        ("authorization: {credentials: [s3cret]}", "authorization.credentials is wrong: input"),
        ("authorization: {type: Basic, credentials: s3cret}", "authorization.type is Basic, for"),
        ("authorization: {type: Bearer}", "authorization has no credentials and no credentials_f"),
        (
            "authorization: {credentials: s3cret, credentials_file: token}",
            "credentials and credentials_file exclude each other",
        ),
        (
            "{authorization: {credentials: s3cret}, basic_auth: {username: me, password: s3cret}}",
            "authorization and basic_auth exclude each other",
        ),
        (r'authorization: {credentials: "s3cret\n2"}', "authorization must be one line of ASCII"),
        ("authorization: {credentials_file: absent}", "cannot read "),
        ("http_headers: {X: {secrets: [s3cret\u00e9]}}", "the header X must be one line of ASCII"),
        ("http_headers: {Host: {values: [s3cret]}}", "the header Host cannot be set: "),
        ("http_headers: {'a b': {values: [s3cret]}}", "'a b' is not the name of a header"),
        ("tls_config: {cert_file: us.crt}", "tls_config.cert_file and tls_config.key_file need"),
        ("tls_config: {ca_file: http.yaml}", "cannot load "),
        ("tls_config: {insecure_skip_verify: s3cret}", "tls_config.insecure_skip_verify is wrong"),
        ("a:\n- s3cret: [", "it is not YAML in line 2"),
        ("s3cret", "the file is wrong: input should be"),
    ],
)
def test_problem_is_one_sentence(tmp_path: Path, config: str, problem: str) -> None:
    """It names the flag, the file and the place."""
    file = tmp_path / "http.yaml"
    file.write_text(config, encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        read_http_config(file)
    said = str(refused.value)

    assert said.startswith(f"--http.config.file: {file}: {problem}")
    assert SECRET not in said
    assert "\n" not in said
    assert refused.value.__suppress_context__


def test_what_is_shown_of_it_has_no_secret(tmp_path: Path) -> None:
    """As in a traceback with local variables."""
    file = tmp_path / "http.yaml"
    file.write_text("authorization: {credentials: s3cret}")

    assert SECRET not in repr(read_http_config(file))
