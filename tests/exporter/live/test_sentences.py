"""A verdict on several ranks becomes one sentence that a reader understands."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.causes.model import UNKNOWN
from exporter.live.causes import CauseView, cause_sentence
from exporter.live.sentences import (
    LateView,
    change_sentence,
    details,
    even_sentence,
    late_sentence,
    view_late,
)
from exporter.ranks.jobs import NODE, AgedVerdict
from rank_probe.judge.verdict import Together
from rank_probe.torch_hooks.private import absent_from
from tests.exporter.live.stepping import EVEN, Node
from tests.exporter.snapshots import CHANGE, LATE, VERDICT, late

LITTLE = {"checkpoint": 0.05}


def views(*ranks: dict[str, Any]) -> list[LateView]:
    """Return late ranks as a node with ranks 0 to 7 sees them."""
    return [
        view_late(late(**changes), 0.0, range(8), costs_enough=changes.get("gpus") != LITTLE)
        for changes in ranks
    ]


def spoken(**changes: Any) -> AgedVerdict:
    """Return a verdict of now."""
    return AgedVerdict(type(VERDICT)(**{"step": 1, "ranks": {"all": 64}, **changes}), 0.0)


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ([{"kind": "pauses"}], "Rank 2 pauses in data now and then; 1.00 of 64 GPUs wait for it."),
        (
            [{"kind": "pauses", "every_steps": 40, "pause_seconds": 12.3}],
            "Rank 2 pauses in data every 40 steps for 12 s; 1.00 of 64 GPUs wait for it.",
        ),
        (
            [
                {"kind": "duty", "stage": "checkpoint", "every_steps": 25, "pause_seconds": 1.04},
                *({"rank": rank, "kind": "duty", "stage": "eval"} for rank in (0, 5)),
            ],
            "Ranks 0 and 5 evaluate now and then and rank 2 saves every 25 steps for 1.0 s; "
            "3.00 of 64 GPUs wait for them.",
        ),
        (
            [{"rank": rank, "kind": "node"} for rank in range(8)],
            "Ranks 0, 1, 2 and 5 more, like most ranks of their node, are slow loading data; "
            "8.00 of 64 GPUs wait for them.",
        ),
        (
            [{"rank": 17}, {"rank": 18}],
            "Ranks 17 and 18 (not on this node) are slow loading data; "
            "2.00 of 64 GPUs wait for them.",
        ),
        (
            [{"rank": 17}, {}],
            "Ranks 17 (not on this node) and 2 are slow loading data; "
            "2.00 of 64 GPUs wait for them.",
        ),
        # Those that are late alike are named in one breath, the costliest first.
        (
            [
                {"gpus": {"data": 0.5}},
                {"rank": 3, "stage": "forward", "gpus": {"forward": 2.0}},
                *({"rank": 4, "stage": stage} for stage in ("backward", "optimizer", "eval")),
            ],
            "Rank 3 is slow in the forward pass, rank 4 is slow in the backward pass, "
            "rank 4 is slow evaluating and 2 more are late; 5.50 of 64 GPUs wait for them.",
        ),
    ],
)
def test_late_ranks_are_named_with_their_cost(ranks: list[dict[str, Any]], sentence: str) -> None:
    assert late_sentence(views(*ranks), 64) == sentence


NODE_1 = [{"rank": rank, "kind": "node"} for rank in range(8, 16)]


@pytest.mark.parametrize(
    ("ranks", "together", "sentence"),
    [
        (
            NODE_1,
            Together("data", 8, 300.0, ((8, 15),), "node n1"),
            "8 of 64 ranks (8 to 15: all of node n1, and no others) have been slow loading data "
            "for 5 min; 8.00 of 64 GPUs wait for them.",
        ),
        # Nothing is known of them; another rank is late in its own way.
        (
            [*NODE_1, {"rank": 40, "stage": "forward", "gpus": {"forward": 9.0}}],
            Together("data", 8, 300.0, ((8, 15),)),
            "Rank 40 (not on this node) is slow in the forward pass and 8 of 64 ranks (8 to 15), "
            "like most ranks of their node, have been slow loading data for 5 min; "
            "17.00 of 64 GPUs wait for them.",
        ),
        # More are late than a verdict names.
        (
            [{"rank": rank} for rank in range(32)],
            Together("data", 48, 60.0, ((0, 47),), "rack r1 or r2"),
            "48 of 64 ranks (0 to 47: all of rack r1 or r2, and no others) have been slow loading "
            "data for 60 s; 32.00 of 64 GPUs wait for them.",
        ),
        # Some of them cost too little to be called late, so the set is not.
        (
            [{"rank": 8}, {"rank": 9}],
            Together("data", 8, 300.0, ((8, 15),), "node n1"),
            "Ranks 8 and 9 (not on this node) are slow loading data; "
            "2.00 of 64 GPUs wait for them.",
        ),
    ],
    ids=["of a node", "of nothing known", "of two racks", "partly called late"],
)
def test_ranks_that_became_late_together_are_named_as_a_set(
    ranks: list[dict[str, Any]], together: Together, sentence: str
) -> None:
    """With what all of them and no others have; where one of them is told, all are."""
    assert late_sentence(views(*ranks), 64, [together]) == sentence


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "Forward of peer group pp1 has taken 2.00 times as long as before for 5 min."),
        (
            {"step_ratio": 1.031, "gpus": 0.24},
            "Forward of peer group pp1 has taken 2.00 times as long as before for 5 min; "
            "steps take 1.03 times as long: 0.24 GPUs lost.",
        ),
        (
            {"stage": "data", "ratio": 4.0, "slower": 5, "slower_ranks": (0, 1, 2, 3, 4)},
            "5 ranks of peer group pp1 (0, 1, 2 and 2 more) became slower together: data has "
            "taken 4.00 times as long as before for 5 min.",
        ),
        (
            {"slower": 5, "peers": 8, "slower_spans": ((0, 4),), "in_common": "rack r12"},
            "5 of 8 ranks of peer group pp1 (0 to 4: all of rack r12, and no others) became slower "
            "together: forward has taken 2.00 times as long as before for 5 min.",
        ),
        (
            {"slower": 9, "peers": 12, "slower_spans": ((0, 3), (5, 5), (7, 8), (10, 11))},
            "9 of 12 ranks of peer group pp1 (0 to 3, 5, 7, 8 and 2 more) became slower together: "
            "forward has taken 2.00 times as long as before for 5 min.",
        ),
        # In more stretches than are told.
        (
            {"slower": 99, "peers": 199, "in_common": "driver 535.104.05"},
            "99 of 199 ranks of peer group pp1 (all of driver 535.104.05, and no others) became "
            "slower together: forward has taken 2.00 times as long as before for 5 min.",
        ),
        (
            {"stage": "sync", "ratio": 1.5, "step_ratio": 1.1, "gpus": 0.8},
            "All ranks of the job have waited for each other 1.50 times as long as before for "
            "5 min; steps take 1.10 times as long: 0.80 GPUs lost.",
        ),
    ],
)
def test_change_is_told_with_its_cost(changes: dict[str, Any], said: str) -> None:
    """From a two-hundredth of a GPU on, as any cost."""
    assert change_sentence(replace(CHANGE, **changes)) == said


SAVES = {"rank": 0, "kind": "duty", "stage": "checkpoint", "gpus": LITTLE}
SAVES |= {"every_steps": 25, "pause_seconds": 0.09}


def test_duty_is_told_as_what_it_is() -> None:
    """Once, whoever else is late; without its length and distance where they are not known."""
    saves, evaluates = views(SAVES, {"rank": 12, "kind": "duty", "stage": "eval", "gpus": LITTLE})
    (late,) = views({})
    said = "ank 0 saves every 25 steps for 90 ms, and 0.05 GPUs wait for it."

    assert even_sentence(spoken(), [saves]) == f"No rank is late: r{said}"
    assert details(spoken(), [saves], None) == []
    assert details(spoken(), [late, saves], None)[1] == f"R{said}"
    assert details(spoken(), [saves, evaluates], None) == [
        "Rank 12 (not on this node) evaluates now and then, and 0.05 GPUs wait for it."
    ]
    assert not saves.is_called_late


def test_what_the_verdict_is_not_on_is_told() -> None:
    """Ranks that never stepped and steps that were not compared are said, none of them not."""
    assert details(spoken(ranks={"all": 60}, absent=4), [], 0.93) == [
        "4 of 64 ranks do not step with the others.",
        "The ranks compared 93% of their steps.",
    ]
    assert details(spoken(), [], 1.0) == []
    # Where no wait was measured no GPU is said to wait.
    assert details(spoken(late=(LATE,)), views({"kind": "unsynced"}), None) == [
        "Rank 2 has needed 45% more time than its peers for 30 s, mostly in data."
    ]
    risen = {"kind": "unsynced", "has_risen": True}
    assert details(spoken(late=(LATE,)), views(risen), None) == [
        "Rank 2 has needed 45% more time than before for 30 s, mostly in data."
    ]
    assert even_sentence(spoken(), views(risen)).endswith(
        "rank 2 needs 45% more time than before, but no wait was measured."
    )
    both = even_sentence(spoken(), views(risen, {"rank": 3, "kind": "unsynced"}))
    assert "ranks 2 and 3 need up to 45% more time than before or their peers, but" in both
    # Where no join speaks, the page says what it has not compared.
    own = replace(spoken(), judge=NODE)
    assert even_sentence(own, []) == "No rank on this node is late."
    assert details(own, [], None)[-1].startswith("The job does not compare the steps of its ranks")


@pytest.mark.parametrize(
    ("cause", "sentence", "said"),
    [
        ("gc", "it collects garbage", "Cause: it collects garbage."),
        (UNKNOWN, "gc is a third of it", "Cause unknown: gc is a third of it."),
        (UNKNOWN, "", "Cause unknown."),
    ],
)
def test_cause_is_a_sentence(cause: str, sentence: str, said: str) -> None:
    """What is not known is said to be so."""
    view = CauseView(cause, "", 0.5, sentence, "", "", None, None, "", [])

    assert cause_sentence(view) == said


def test_page_tells_what_is_not_seen_in_this_torch() -> None:
    """How many names it lacks, and once what the probe does without them."""
    node, older = Node(), {"runtime_info": {"torch": "2.4.1"}}
    names = [row.name for row in absent_from("2.4.1")]
    node.change(0, 1, missing_names=names, **older)
    node.change(2, missing_names=[*names, "torch:of_a_newer_probe"], **older)

    assert node.judged(EVEN)["details"][-1] == (
        "torch 2.4.1 lacks 4 of the names that the probe uses in it. "
        "What a loop reads between DDP's forward and backward is `forward`. "
        "There are no zero-bubble schedules, so none is timed."
    )
    node.change(missing_names=[])
    assert not any("torch" in each for each in node.judged(EVEN)["details"])
