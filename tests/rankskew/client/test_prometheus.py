"""What a Prometheus answers becomes series of numbers, and its refusals become sentences."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus, Sample, Series, with_names
from tests.rankskew.client.servers import Answer, json_answer, serving
from tests.rankskew.top import fake_prometheus as fake


@contextmanager
def answering(
    data: dict[str, Any],
) -> Iterator[tuple[Prometheus, list[tuple[str, dict[str, str]]]]]:
    """A Prometheus that answers *data*, and what it is asked."""
    asked: list[tuple[str, dict[str, str]]] = []

    def answer(path: str, form: dict[str, str]) -> Answer:
        asked.append((path, form))
        return json_answer({"status": "success", "data": data})

    with serving(answer) as url:
        yield Prometheus(url), asked


def test_query_is_asked_for_a_time() -> None:
    """Without a time, Prometheus takes now."""
    with answering(
        {"result": [{"metric": {"__name__": "up", "a": "b"}, "value": [12.5, "1"]}]}
    ) as (server, asked):
        found = server.query("up", 12.5)
        server.query("up")

    assert (found, server.now) == ([Sample("up", {"a": "b"}, 1.0)], 12.5)
    assert asked == [
        ("/api/v1/query", {"query": "up", "time": "12.500"}),
        ("/api/v1/query", {"query": "up"}),
    ]


def test_range_keeps_numbers_only() -> None:
    points = [[0, "1"], [15, "NaN"], [30, "2"]]
    lines = [{"metric": {"rank": "3"}, "values": points}, {"metric": {}, "values": []}]
    with answering({"result": lines}) as (server, asked):
        found = server.query_range("x", 0, 30, 15)

    assert found == [Series("", {"rank": "3"}, [(0.0, 1.0), (30.0, 2.0)]), Series("", {}, [])]
    assert (found[0]["rank"], found[0]["none"]) == ("3", "")
    assert asked == [
        ("/api/v1/query_range", {"query": "x", "start": "0.000", "end": "30.000", "step": "15"})
    ]


def test_refused_query_is_told() -> None:
    said = {"status": "error", "error": "exceeded maximum resolution of 11,000 points"}

    with (
        serving(lambda path, form: json_answer(said, 400)) as url,
        pytest.raises(Trouble, match="cannot answer a query: exceeded maximum resolution"),
    ):
        Prometheus(url).query_range("x", 0, 1e9, 1)


@pytest.mark.parametrize(
    "data", [{}, {"result": 1}, {"result": ["broken"]}, {"result": [{"metric": {}, "value": [1]}]}]
)
def test_other_answers_are_told(data: dict[str, Any]) -> None:
    with (
        answering(data) as (server, _),
        pytest.raises(Trouble, match=r"answers, but it is not a Prometheus\."),
    ):
        server.query("x")


def test_patience_is_told() -> None:
    """A report has more of it than a screen."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Trouble, match=r"does not answer: no answer within 0 s\."):
            Prometheus(url, timeout_seconds=0.05).query("up")


# ---- Names of nodes ------------------------------------------------------------------------------


def named(instance: str, nodename: str, cluster: str = "eu") -> fake.Series:
    where = {"instance": instance, "cluster": cluster, "job_id": ""}
    return fake.series("rankskew_exporter_build_info", nodename=nodename, **where)


def test_names_are_those_of_the_cluster() -> None:
    """Private addresses are the same in every cluster."""
    known = [named("10.0.0.5:9917", "gpu-5"), named("10.0.0.5:9917", "other", cluster="us")]
    sample = Sample("s", {"cluster": "us", "instance": "10.0.0.5:9917"}, 1.0)
    with fake.FakePrometheus(known).serve() as url:
        (found,) = with_names(Prometheus(url), [sample])

    assert found["instance"] == "other"


def test_only_addresses_are_asked_for() -> None:
    """Whoever relabels instance pays no query, and an address without a name stays."""
    prometheus = fake.FakePrometheus(
        [named("10.0.0.5:9917", "gpu-5"), named("[fd00::6]:9917", "gpu-6")]
    )
    instances = ("gpu-1:9917", "10.0.0.5:9917", "[fd00::6]:9917", "10.0.0.7:9917", "")
    samples = [Sample("s", {"cluster": "eu", "instance": each}, 1.0) for each in instances]
    with prometheus.serve() as url:
        found = with_names(Prometheus(url), samples)
        assert with_names(Prometheus(url), samples[:1]) == samples[:1]

    assert [each["instance"] for each in found] == [
        "gpu-1:9917",
        "gpu-5",
        "gpu-6",
        "10.0.0.7:9917",
        "",
    ]
    (query,) = prometheus.asked
    assert query.startswith("last_over_time(rankskew_exporter_build_info{instance=~")
    assert "5:9917|" in query
    assert "gpu-1" not in query
