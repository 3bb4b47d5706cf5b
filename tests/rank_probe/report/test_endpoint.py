"""Tests of what an endpoint may be, and of one request to it."""

from pathlib import Path

import pytest

from rank_probe.report.endpoint import Reply, ask, open_connection, socket_path
from tests.rank_probe.sink import PATIENCE_SECONDS, listening_on_loopback


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("unix:/a/b", "/a/b"), ("unix:///a/b", "/a/b"), ("unix:a", None), ("http://x:1", None)],
)
def test_only_a_socket_has_a_path(endpoint: str, path: str | None) -> None:
    """Over TCP there is no file to look at."""
    assert socket_path(endpoint) == path


@pytest.mark.parametrize("endpoint", ["", "exporter.sock", "unix:relative", "http://host", "x:1"])
def test_wrong_endpoint_says_what_it_must_be(endpoint: str) -> None:
    """The error shows what was given and what is accepted."""
    with pytest.raises(ValueError, match="it must be unix:/path"):
        open_connection(endpoint)


def test_request_shows_the_token_and_returns_what_is_answered(tmp_path: Path) -> None:
    """Status, the server's name and the body come back, whatever the status is."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    with listening_on_loopback() as sink:
        sink.token, sink.status, sink.answer = "s3cret", 422, b'{"error":"No."}'
        reply = ask(
            sink.endpoint,
            "POST",
            "/",
            b'{"heartbeat_timestamp_seconds":1}',
            token_file=str(token),
            timeout_seconds=PATIENCE_SECONDS,
        )

    assert (reply.status, reply.json_object()) == (422, {"error": "No."})
    assert reply.server.startswith("BaseHTTP")


@pytest.mark.parametrize("body", [b"", b"[1]", b"\xff", b"[" * 60_000])
def test_body_that_is_no_object_is_an_empty_one(body: bytes) -> None:
    """So a field of it is missing, and nothing raises."""
    assert Reply(200, "", body).json_object() == {}
