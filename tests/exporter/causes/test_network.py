"""The network of a slow node."""

import pytest

from tests.exporter.causes.planted import found, named

LATE = {"data": 0.05, "forward": 0.15}


@pytest.mark.parametrize(
    ("detail", "changes", "says"),
    [
        (
            "speed",
            {"node_network_link_bytes_per_second": 12.5e9},
            "a network port of its node, mlx5_0, runs at 12.5 GB/s, its peers' at 50.2",
        ),
        (
            "errors",
            {"node_network_errors_per_second": 40.0},
            "its node's network, mlx5_0, has an error rate of 40 a second, its peers' 0",
        ),
        (
            "retransmits",
            {"node_tcp_retransmitted_ratio": 0.029},
            "its node retransmits 2.9 % of its TCP segments, its peers' 0.01 %",
        ),
        (
            "congestion",
            {"node_network_waiting_ratio": 0.41},
            "its node's network ports, mlx5_0, wait to send 41 % of the time, its peers' 1 %",
        ),
    ],
)
def test_network_of_a_slow_node_is_found(detail: str, changes: dict[str, float], says: str) -> None:
    """If those of the other nodes are better; it does not explain one rank of many."""
    cause = found(LATE, changes, facts=dict.fromkeys(changes, "mlx5_0"), of_node=True)

    assert named(cause) == ("network", detail)
    assert cause.sentence == says
    assert found(LATE, changes).cause == "unknown"
    assert found(LATE, changes, usual=dict(changes), of_node=True).cause == "unknown"


def test_slow_port_explains_what_is_counted_on_it() -> None:
    """Of two facts about the network the first of these is told."""
    changes = {"node_network_link_bytes_per_second": 12.5e9, "node_network_waiting_ratio": 0.41}

    assert named(found(LATE, changes, of_node=True)) == ("network", "speed")


def test_network_is_why_a_thread_waits_for_a_socket() -> None:
    """Though other ranks of the node, which use none, keep up."""
    states = [("data", "socket", 0.9, "fetch (corpus.py:12)")]
    lost = {"node_tcp_retransmitted_ratio": 0.05}

    assert named(found({"data": 0.3}, lost, states=states)) == ("network", "retransmits")
    assert named(found({"data": 0.3}, {}, states=states)) == ("code", "socket")


def test_network_does_not_delay_a_thread_that_runs() -> None:
    """Nor one that sleeps."""
    lost = {"node_tcp_retransmitted_ratio": 0.05}
    states = [("data", "running", 0.5, "f (a.py:1)"), ("data", "sleep", 0.5, "g (a.py:2)")]

    assert found({"data": 0.3}, lost, states=states, of_node=True).cause != "network"
