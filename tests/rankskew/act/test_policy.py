"""When a node is held, and when it is freed."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from exporter.vocabulary.words import CAUSES
from rankskew.act.model import Episode, Held, HeldNodes, Limits, Node, NodeAction, Seen
from rankskew.act.policy import decide, is_name, is_of_node
from tests.rankskew.act.nodes import HOUR, LIMITS, N1, NAMES, NOW, holding, late, seen

THREE = [late((300, 295)), late((200, 195)), late((5, 0))]


@pytest.mark.parametrize(
    ("what", "state", "rule"),
    [
        (seen(late((31, 0))), HeldNodes(), "of_node"),
        (seen(*THREE), HeldNodes(), "of_node"),
        (seen(late((31, 0), detail="thermal", cause="cpu")), HeldNodes(), "of_node"),
        (seen(), HeldNodes(), "quiet"),
        (seen(late((60, 11))), HeldNodes(), "quiet"),
        (seen(late((60, 5))), HeldNodes(), "pause"),
        (seen(late((29, 0))), HeldNodes(), "not_yet"),
        (seen(late((60, 40), (9, 0))), HeldNodes(), "not_yet"),
        (seen(*THREE[1:]), HeldNodes(), "not_yet"),
        (seen(late((1600, 1590)), *THREE[1:]), HeldNodes(), "not_yet"),
        (seen(late((90, 0), cause="input", detail="nfs")), HeldNodes(), "cause"),
        (seen(late((90, 0), cause="unknown", detail="")), HeldNodes(), "cause"),
        (seen(late((300, 200)), late((90, 0), cause="code", detail="")), HeldNodes(), "cause"),
        (seen(late((90, 0), cause="cpu", detail="run_queue")), HeldNodes(), "cause"),
        (seen(late((31, 0)), name="10.0.0.7"), HeldNodes(), "name"),
        (seen(late((31, 0)), name="n[1-9]"), HeldNodes(), "name"),
        (seen(late((31, 0))), holding("n2"), "job"),
        (seen(late((31, 0)), jobs={"alone": frozenset({"n1"})}), HeldNodes(), "job"),
        (seen(late((31, 0)), jobs={}), HeldNodes(), "of_node"),
        (seen(late((31, 0)), jobs={}), holding("n5", "n6"), "most_nodes"),
        (
            seen(late((31, 0)), pools={"partition a": frozenset({"n1"})}),
            HeldNodes(),
            "most_percent",
        ),
        (seen(late((31, 0)), pools={"cluster eu": frozenset()}), HeldNodes(), "no_pool"),
        (
            seen(late((31, 0)), pools={"cluster eu": NAMES, "b": frozenset()}),
            HeldNodes(),
            "of_node",
        ),
        (seen(late((31, 0))), holding("n1"), "held"),
        (seen(late((31, 0))), HeldNodes(freed={N1: NOW - 600}), "not_yet"),
        (seen(*THREE), HeldNodes(freed={N1: NOW - 600}), "not_yet"),
    ],
)
def test_rule(what: Seen, state: HeldNodes, rule: str) -> None:
    """What decides in each case; only a fault of the node, proven and within limits, holds it."""
    decision = decide(state, what, LIMITS, NOW)

    assert decision.rule == rule
    assert (decision.action == NodeAction.HOLD) == (rule == "of_node")


def test_sentence_says_what_and_how_often_and_where() -> None:
    """A person who finds a drained node reads why, with the incident to look up."""
    said = decide(HeldNodes(), seen(*THREE[:2], late((45, 0))), LIMITS, NOW).sentence

    assert said == (
        "slow GPU (clock) for 45m, 3 times in 1d; last rank 9 on n1 of job llama, incident "
        "1126-1935-abcd"
    )


@pytest.mark.parametrize(
    ("judged", "episodes", "again", "rule"),
    [
        ([(NOW - HOUR, NOW)], [], None, "recovered"),
        ([(NOW - HOUR, NOW - 60)], [], None, "held"),
        ([(NOW - 9 * HOUR, NOW - HOUR)], [], None, "held"),  # Before it was held.
        ([(NOW - HOUR, NOW)], [late((50, 40))], None, "held"),
        ([(NOW - HOUR, NOW)], [late((50, 40), cause="input")], None, "held"),
        ([], [], None, "held"),
        ([], [], HOUR, "again"),
        ([], [], 2 * HOUR, "held"),
    ],
)
def test_node_comes_back_once_it_was_judged_and_not_late(
    judged: list[tuple[float, float]], episodes: list[Episode], again: float | None, rule: str
) -> None:
    """Silence alone is no recovery: a drained node runs nothing."""
    limits = replace(LIMITS, again_seconds=again)
    decision = decide(holding("n1"), seen(*episodes, judged=judged), limits, NOW)

    assert decision.rule == rule
    assert (decision.action == NodeAction.FREE) == (rule in ("recovered", "again"))


def test_each_cause_is_the_nodes_or_not() -> None:
    """A new cause or detail is nobody's fault until it is put into the list."""
    found = {
        (cause, detail)
        for cause, words in CAUSES.items()
        for detail in ("", *words.details)
        if is_of_node(cause, detail)
    }
    devices = {("slow_device", detail) for detail in ("", *CAUSES["slow_device"].details)}
    others = {("cpu", each) for each in ("thermal", "frequency", "steal")}
    others |= {("network", each) for each in ("speed", "errors", "retransmits")}

    assert found == devices | others


@pytest.mark.parametrize("text", ["", "ALL", "all", "n1,n2", "n[1-9]", "../x", "a b", "-x", "n1\n"])
def test_what_a_scheduler_would_read_as_several_is_no_name(text: str) -> None:
    """A name comes from the network in the end, and goes into a command and a path."""
    assert not is_name(text)


# ---- Whatever was seen --------------------------------------------------------------------------

AGO = st.floats(0, 30 * HOUR)
SPANS = st.lists(st.tuples(AGO, AGO), min_size=1, max_size=4).map(
    lambda ago: sorted((NOW - max(pair) - 1, NOW - min(pair)) for pair in ago)
)
CAUSE = st.sampled_from([(c, d) for c, words in CAUSES.items() for d in ("", *words.details)])
EPISODE = st.builds(
    lambda spans, cause: Episode(spans, cause[0], cause[1], incidents=["1126-1935-abcd"]),
    SPANS,
    CAUSE,
)
SOME = st.frozensets(st.sampled_from(sorted(NAMES)), max_size=12)
SEEN = st.builds(
    lambda name, episodes, others, pools: Seen(
        Node("eu", f"{name}:9917"),
        name,
        sorted(episodes, key=lambda each: each.end),
        {f"job{n}": names | {name} for n, names in enumerate(others)},
        {f"pool{n}": names | {name} for n, names in enumerate([*pools, NAMES])},
    ),
    st.sampled_from(sorted(NAMES)),
    st.lists(EPISODE, max_size=4),
    st.lists(SOME, max_size=3),
    st.lists(SOME, max_size=2),
)
SOME_LIMITS = st.builds(
    Limits,
    st.floats(1, HOUR),
    st.integers(1, 4),
    st.floats(HOUR, 24 * HOUR),
    st.integers(1, 5),
    st.floats(1, 100),
    st.integers(1, 3),
    st.floats(60, HOUR),
)


@given(st.lists(SEEN, max_size=12), SOME_LIMITS)
@settings(deadline=None, max_examples=100)
def test_limits_hold_whatever_comes(nodes: list[Seen], limits: Limits) -> None:
    """Never too many, of a pool either, never a job's last ones, never for input; twice is once."""
    state = HeldNodes()
    for each in nodes:
        decision = decide(state, each, limits, NOW)
        if decision.action != NodeAction.HOLD:
            continue
        assert decision.episode is not None
        assert is_of_node(decision.episode.cause, decision.episode.detail)
        state.held[each.node] = Held(each.name, NOW)
        names = {held.name for held in state.held.values()}
        assert len(names) <= limits.most_nodes
        for pool in each.pools.values():
            assert len(names & pool) <= limits.most_percent / 100 * len(pool) + 1e-6
        for job in each.jobs.values():
            assert len(job - names) >= limits.job_nodes_left
        assert decide(state, each, limits, NOW).action == NodeAction.KEEP


@given(st.lists(st.builds(Episode, SPANS, st.sampled_from(["input", "code", "uneven_batches"]))))
@settings(deadline=None, max_examples=50)
def test_no_fault_of_the_job_holds_a_node(episodes: list[Episode]) -> None:
    """However long and often it is late for its input, its code or its batches."""
    assert decide(HeldNodes(), seen(*episodes), LIMITS, NOW).action != NodeAction.HOLD
