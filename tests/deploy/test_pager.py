"""The stand-in for Slack of deploy/compose prints what Alertmanager sends."""

import io
import json
import runpy
from pathlib import Path

import pytest

PAGER = runpy.run_path(str(Path(__file__).parents[2] / "deploy/compose/pager.py"))


def test_prints_each_alert_with_its_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """Alerts as in Alertmanager's webhook, version 4: annotations may be absent."""
    late = {"summary": "rank 2 is slow", "first": "look at its disk", "runbook_url": "http://x"}
    sent = {
        "alerts": [
            {"status": "firing", "labels": {"alertname": "Late"}, "annotations": late},
            {"status": "resolved", "labels": {"alertname": "Hung"}, "annotations": {}},
        ]
    }
    body = json.dumps(sent).encode()
    request = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answer = _served(request)
    assert answer.startswith(b"HTTP/1.0 200 ")
    assert capsys.readouterr().out.splitlines() == [
        "PAGE: Late",
        "  rank 2 is slow",
        "  look at its disk",
        "resolved: Hung",
    ]


def _served(request: bytes) -> bytes:
    """Return what the pager answers to *request*."""

    class Connection:
        sent = b""

        def makefile(self, *_: object) -> io.BytesIO:
            return io.BytesIO(request)

        def sendall(self, part: bytes) -> None:
            self.sent += part

    connection = Connection()
    PAGER["Pager"](connection, ("", 0), None)
    return connection.sent
