"""What goes wrong while asking a server is one sentence."""

import socket
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path

import pytest

from exporter.errors import UsageError
from rankskew.client import fetch
from rankskew.client.fetch import Trouble, base_url, get_json
from tests.rankskew.client.servers import json_answer, serving


@contextmanager
def saying(words: bytes) -> Iterator[str]:
    """Accept one connection and say *words* to it, whatever it asks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(words)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{port}"
        thread.join()


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


@pytest.mark.parametrize("text", ["", "ftp://x", "http://", "http://a:b", "a b", "http://[::1"])
def test_bad_url_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a URL such as http://node1:9917"):
        base_url(text)


def test_password_in_a_url_is_refused() -> None:
    """It would be visible to all users; the message does not repeat it."""
    with pytest.raises(UsageError, match=r"put it in ~/\.netrc") as refused:
        base_url("http://me:secret@node1:9917")

    assert "secret" not in str(refused.value)


def test_password_comes_from_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host in ~/.netrc gets its user and password, as with curl --netrc."""
    file = tmp_path / ".netrc"
    file.write_text("machine 127.0.0.1 login me password secret\n")
    file.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    asked: list[Message] = []
    with serving(lambda path, form: json_answer({}), asked.append) as url:
        get_json(url, "/x")
        get_json(url.replace("127.0.0.1", "localhost"), "/x")

    assert b64decode(asked[0]["Authorization"].removeprefix("Basic ")) == b"me:secret"
    assert asked[1]["Authorization"] is None


def test_silence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and says nothing costs a few seconds, not forever."""
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Trouble, match=r"does not answer: no answer within 0 s\."):
            get_json(url, "/x")


@pytest.mark.parametrize(
    ("words", "scheme", "problem"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "http", "its answer is not HTTP"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "https", "it does not speak TLS; try http://"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "http", r"answers 503 Service Unavail"),
    ],
)
def test_other_answers_are_told(words: bytes, scheme: str, problem: str) -> None:
    """Of another protocol, without TLS for https://, and of a server that fails."""
    with saying(words) as url, pytest.raises(Trouble, match=problem):
        get_json(url.replace("http:", f"{scheme}:"), "/x")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "node..example.org"])
def test_unknown_host_is_told(host: str) -> None:
    with pytest.raises(Trouble, match=r"does not answer: its name is not known\."):
        get_json(f"http://{host}:9917", "/x")


def test_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment cannot reach what listens on loopback."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(lambda path, form: json_answer({"path": path})) as url:
        assert get_json(url, "/x") == {"path": "/x"}
