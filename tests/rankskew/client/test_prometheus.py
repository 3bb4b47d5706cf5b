"""What a Prometheus answers becomes series of numbers, and its refusals become sentences."""

import socket
from typing import Any

import pytest

from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus, Sample, Series
from tests.rankskew.client.servers import Answer, json_answer, serving


def result(*found: dict[str, Any]) -> dict[str, Any]:
    return {"status": "success", "data": {"result": list(found)}}


def test_query_is_asked_for_a_time() -> None:
    """Without a time, Prometheus takes now."""
    asked = []

    def answer(path: str, form: dict[str, str]) -> Answer:
        asked.append((path, form))
        return json_answer(result({"metric": {"__name__": "up", "a": "b"}, "value": [12.5, "1"]}))

    with serving(answer) as url:
        server = Prometheus(url)
        found = server.query("up", 12.5)
        server.query("up")

    assert found == [Sample("up", {"a": "b"}, 1.0)]
    assert server.now == 12.5
    assert asked == [
        ("/api/v1/query", {"query": "up", "time": "12.500"}),
        ("/api/v1/query", {"query": "up"}),
    ]


def test_range_keeps_numbers_only() -> None:
    """A value that is not a number is no reading."""
    points = [[0, "1"], [15, "NaN"], [30, "2"], "broken"]
    asked = []

    def answer(path: str, form: dict[str, str]) -> Answer:
        asked.append((path, form))
        return json_answer(result({"metric": {"rank": "3"}, "values": points}, {"metric": {}}))

    with serving(answer) as url:
        found = Prometheus(url).query_range("x", 0, 30, 15)

    assert found == [Series("", {"rank": "3"}, [(0.0, 1.0), (30.0, 2.0)]), Series("", {}, [])]
    assert found[0]["rank"] == "3"
    assert found[0]["none"] == ""
    assert asked == [
        ("/api/v1/query_range", {"query": "x", "start": "0.000", "end": "30.000", "step": "15"})
    ]


def test_refused_query_is_told() -> None:
    """Prometheus' own words say why."""
    said = {"status": "error", "error": "exceeded maximum resolution of 11,000 points"}

    with (
        serving(lambda path, form: json_answer(said, 400)) as url,
        pytest.raises(Trouble, match="cannot answer a query: exceeded maximum resolution"),
    ):
        Prometheus(url).query_range("x", 0, 1e9, 1)


def test_groups_of_alerts_are_asked_for() -> None:
    """Prometheus answers that with a GET only."""
    group = {"name": "g", "interval": 15, "rules": []}
    asked = []

    def answer(path: str, form: dict[str, str]) -> Answer:
        asked.append((path, form))
        return json_answer({"status": "success", "data": {"groups": [group, "broken"]}})

    with serving(answer) as url:
        assert Prometheus(url).alert_groups() == [group]
    assert asked == [("/api/v1/rules?type=alert", {})]


def test_patience_is_told() -> None:
    """A report has more of it than a screen."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Trouble, match=r"does not answer: no answer within 0 s\."):
            Prometheus(url, timeout_seconds=0.05).query("up")
