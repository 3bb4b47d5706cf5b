"""`rankskew diagnose`: its options, its formats and its exit status."""

import json
import time

import pytest

from rankskew.__main__ import main
from tests.rankskew.client.servers import exporter_of
from tests.rankskew.diagnose.recorded import losses, straggler
from tests.rankskew.top import fake_prometheus as fake
from tests.rankskew.top.documents import live
from tests.rankskew.top.fake_prometheus import FakePrometheus

Captured = pytest.CaptureFixture[str]


def test_status_says_whether_something_is_found(capsys: Captured) -> None:
    """Text, Markdown, and the whole report as JSON for programs; nothing is on stderr."""
    with FakePrometheus(straggler()).serve() as url:
        assert main(["diagnose", "--prometheus", url]) == 1
        text = capsys.readouterr()
        assert main(["diagnose", "--prometheus", url, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    with FakePrometheus([*fake.job(), *losses(common=0.3)]).serve() as url:
        assert main(["diagnose", "--prometheus", url, "--markdown"]) == 0

    assert "Balanced: nothing is wrong that was measured." in capsys.readouterr().out
    assert ("1. Rank 6 is slow loading data" in text.out, text.err) == (True, "")
    assert (said["outcome"], said["exit_status"], said["job_id"]) == ("found", 1, "llama")
    assert said["findings"][0]["place"]["pid"] == 4006
    assert said["cost_per_hour"] == 0.75


def test_what_cannot_be_told_is_status_2(capsys: Captured) -> None:
    """One sentence on stderr, and a document for programs."""
    with exporter_of(live()) as url:
        pass
    assert main(["diagnose", "--exporter", url, "--json"]) == 2
    said = capsys.readouterr()
    assert said.err == f"rankskew: {url} does not answer: Connection refused.\n"
    assert json.loads(said.out)["trouble"].startswith(url)


def test_time_may_be_written_in_several_ways(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unix seconds, or ISO 8601; without an offset it is UTC, wherever one sits."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    fleet = FakePrometheus(straggler())
    times = []
    with fleet.serve() as url:
        for text in (
            "1795420800",
            "2026-11-23T08:00:00Z",
            "2026-11-23T08:00",
            "2026-11-23T09:00+01:00",
        ):
            main(["diagnose", "--prometheus", url, "--at", text, "--json"])
            times.append(json.loads(capsys.readouterr().out)["at_seconds"])

    monkeypatch.undo()
    time.tzset()
    assert times == [1_795_420_800.0] * 4
