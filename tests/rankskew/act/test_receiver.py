"""The webhook takes what Alertmanager sends from whoever has the token, and believes none of it."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from exporter.ingest.token_file import TokenFile
from rankskew.act.receiver import LARGEST_BYTES, Receiver

TOKEN = {"Authorization": "Bearer s3cret"}


def alert(**more: Any) -> dict[str, Any]:
    labels = {"alertname": "RankskewStraggler", "instance": "n1:9917"} | more.pop("labels", {})
    return {"status": "firing", "labels": labels} | more


def body(*alerts: Any, version: Any = "4") -> bytes:
    return json.dumps({"version": version, "status": "firing", "alerts": alerts}).encode()


class Served:
    """A receiver; *got* is what it took, and there is room for *room* more."""

    def __init__(self, directory: Path) -> None:
        self.token = directory / "token"
        self.token.write_text("s3cret\n")
        self.got: list[str] = []
        self.room = 1
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.server = Receiver(listening, TokenFile(self.token, "--token-file"), self.take)

    def take(self, instances: Any) -> bool:
        self.room -= 1
        self.got += instances if self.room >= 0 else []
        return self.room >= 0

    def post(
        self, content: bytes, headers: dict[str, str] = TOKEN, path: str = "/alertmanager"
    ) -> tuple[int, Any]:
        answer = urllib3.request("POST", self.url + path, body=content, headers=headers)
        return answer.status, answer.json()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path)
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    with found.server:
        yield found
        found.server.shutdown()
    thread.join()


def test_firing_alerts_on_nodes_are_taken(served: Served) -> None:
    """Not those that are over, of which the recovery is proven otherwise, nor other alerts."""
    slow = alert(labels={"alertname": "RankskewSlowNode", "instance": "n2:9917"})
    over = alert(status="resolved", labels={"instance": "n3:9917"})
    other = alert(labels={"alertname": "RankskewJobHung", "instance": "n4:9917"})
    strange = [7, {}, {"status": "firing"}, alert(labels={"instance": None})]

    assert served.post(body(alert(), slow, over, other, *strange)) == (200, {"nodes": 2})
    assert served.got == ["n1:9917", "n2:9917"]


@pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer no"}, {"Authorization": "s3cret"}])
def test_without_the_token_nothing_is_taken(served: Served, sent: dict[str, str]) -> None:
    status, said = served.post(body(alert()), sent)

    assert (status, served.got) == (401, [])
    assert said == {"error": "the token is missing or wrong: see --token-file"}


def test_token_can_be_renewed(served: Served) -> None:
    """Alertmanager and this read their files by themselves."""
    served.token.write_text("another\n")

    assert served.post(body(alert()))[0] == 401
    assert served.post(body(alert()), {"Authorization": "Bearer another"})[0] == 200


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"{", "the body is not JSON; Alertmanager's webhook sends it."),
        (b"[" * 100_000, "the body is not JSON; Alertmanager's webhook sends it."),
        (body(alert(), version="5"), 'Alertmanager of version 4, but of "5"; this rankskew act'),
        (body(alert(), version=None), "Alertmanager of version 4, but of null; this rankskew act"),
        (b"[]", "Alertmanager of version 4, but of null; this rankskew act"),
    ],
)
def test_what_it_does_not_know_is_refused_in_a_sentence(
    served: Served, content: bytes, error: str
) -> None:
    """Alertmanager logs the answer, and does not try again."""
    status, said = served.post(content)

    assert (status, served.got) == (400, [])
    assert error in said["error"]


def test_what_is_too_much_is_refused(served: Served) -> None:
    """A body too large, and more webhooks than can wait, which Alertmanager sends again."""
    served.room = 0
    assert served.post(body(alert()))[0] == 503
    huge = {**TOKEN, "Content-Length": str(LARGEST_BYTES + 1)}
    assert served.post(b"", huge)[0] == 413


def test_other_paths_say_what_there_is(served: Served) -> None:
    """A health check needs no token."""
    assert served.post(body(alert()), path="/")[0] == 404
    assert urllib3.request("GET", f"{served.url}/-/healthy").json() == {"healthy": True}
    missing = urllib3.request("GET", served.url).json()
    assert missing == {"error": "this serves POST to /alertmanager, and GET of /-/healthy"}
