"""A figure that its peers do not have tells the cause, in a sentence."""

import pytest

from exporter.causes.model import Evidence
from rank_probe.judge.verdict import NODE
from tests.exporter.causes.planted import FACTS, TOLD, evidence, found, lateness, named, peers, why

EXTRA = {"input": {"data": 0.25}, "gc": {"other": 0.2}}
ON_GPU = {"forward": 0.1, "backward": 0.2}


@pytest.mark.parametrize(("cause", "changes"), TOLD)
def test_figure_tells_the_cause(cause: tuple[str, str], changes: dict[str, float]) -> None:
    """Unless its peers have the same; a node's only if all its ranks are late, or it has one.

    Also if nobody measured the stages: the judge says in which of them it is late.
    """
    extra = EXTRA.get(cause[0], ON_GPU)
    of_node = next(iter(changes)).startswith("node_")

    said = found(extra, changes, facts=FACTS, of_node=of_node)
    assert named(said) == cause
    assert said.value == changes[said.figure]
    assert found(extra, changes, usual=dict(changes), of_node=of_node).cause == "unknown"
    known = evidence(extra, changes, facts=FACTS)
    bare = {name: known.figures[name] for name in known.figures if "_seconds" not in name}
    unmeasured = Evidence({**bare, **changes}, facts=FACTS)
    assert named(why(lateness(extra, NODE), unmeasured, peers())) == cause
    if of_node:
        assert found(extra, changes, facts=FACTS).cause == "unknown"
        assert named(why(lateness(extra, is_alone=True), known, peers())) == cause


def test_clock_that_explains_little_is_a_guess() -> None:
    """5 % of the clock are no third of its time, and a foreign process is told before it."""
    cause = found(ON_GPU, {"sm_clock_hertz": 1.85e9})
    both = {"sm_clock_hertz": 1.85e9, "gpu_foreign_processes": 1.0}

    assert cause.cause == "unknown"
    assert [(each.cause, each.detail) for each in cause.others] == [("slow_device", "clocks")]
    assert 0.1 < cause.others[0].share < 0.25
    assert found(ON_GPU, both).cause == "foreign_process"
    assert named(found(ON_GPU, both | {"sm_clock_hertz": 1.41e9})) == ("slow_device", "clocks")


def test_throttling_counts_where_no_clock_is_read() -> None:
    """A throttled GPU that has the clock of its peers is not slow."""
    changes = {"gpu_throttled_ratio": 0.8}
    cause = found(ON_GPU, changes, usual={"sm_clock_hertz": None})

    assert (*named(cause), cause.figure) == ("slow_device", "clocks", "gpu_throttled_ratio")
    assert found(ON_GPU, changes).cause == "unknown"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        # A GPU that saves power lowers both clocks.
        ({"sm_clock_hertz": 1.2e9, "memory_clock_hertz": 1.593e9}, ("slow_device", "pstate")),
        # A slow port explains what is counted on it.
        (
            {"node_network_link_bytes_per_second": 12.5e9, "node_network_waiting_ratio": 0.41},
            ("network", "speed"),
        ),
    ],
)
def test_what_explains_the_other_is_told(changes: dict[str, float], cause: tuple[str, str]) -> None:
    assert named(found(ON_GPU, changes, of_node=True)) == cause


def test_network_is_why_a_thread_waits_for_a_socket() -> None:
    """Though other ranks of the node, which use none, keep up."""
    states = [("data", "socket", 0.9, "fetch (corpus.py:12)")]
    lost = {"node_tcp_retransmitted_ratio": 0.05}

    assert named(found({"data": 0.3}, lost, states=states)) == ("network", "retransmits")
    assert named(found({"data": 0.3}, {}, states=states)) == ("code", "socket")
