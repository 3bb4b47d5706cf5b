"""The stand-in for Slack of deploy/compose prints what Alertmanager sends."""

import json
import runpy
import threading
import urllib.request
from http.server import HTTPServer
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
    with HTTPServer(("127.0.0.1", 0), PAGER["Pager"]) as server:
        asked = threading.Thread(target=server.handle_request)
        asked.start()
        url = f"http://127.0.0.1:{server.server_port}/page"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, json.dumps(sent).encode()) as answer:
            assert answer.status == 200
        asked.join()

    assert capsys.readouterr().out.splitlines() == [
        "PAGE: Late",
        "  rank 2 is slow",
        "  look at its disk",
        "resolved: Hung",
    ]
