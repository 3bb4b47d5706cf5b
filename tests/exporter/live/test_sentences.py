"""A verdict on several ranks becomes one sentence that a reader understands."""

from typing import Any

import pytest

from exporter.live.sentences import LateView, details, even_sentence, late_sentence, view_late
from exporter.ranks.jobs import NODE, AgedVerdict
from tests.exporter.snapshots import LATE, VERDICT, late

HERE = set(range(8))


def views(*ranks: dict[str, Any]) -> list[LateView]:
    """Return late ranks as a node with ranks 0 to 7 sees them."""
    return [view_late(late(**changes), 0.0, HERE) for changes in ranks]


def named(*ranks: dict[str, Any]) -> str:
    """Return who is late of 64 ranks, without the cost."""
    return late_sentence(views(*ranks), 64).split(";")[0]


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ([{}], "Rank 2 is slow loading data"),
        ([{"kind": "pauses"}], "Rank 2 pauses now and then in data"),
        ([{"kind": "node"}], "Rank 2, like most ranks of its node, is slow loading data"),
        ([{}, {"rank": 5}], "Ranks 2 and 5 are slow loading data"),
        (
            [{"rank": rank, "kind": "node"} for rank in range(8)],
            "Ranks 0, 1, 2 and 5 more, like most ranks of their node, are slow loading data",
        ),
        ([{"rank": 17}, {"rank": 18}], "Ranks 17 and 18 (not on this node) are slow loading data"),
        ([{}, {"rank": 17}], "Ranks 2 and 17 (not on this node) are slow loading data"),
        ([{"rank": 17}, {}], "Ranks 17 (not on this node) and 2 are slow loading data"),
        (
            [{"gpus": {"data": 0.5}}, {"rank": 3, "stage": "forward", "gpus": {"forward": 2.0}}],
            "Rank 3 is slow in the forward pass and rank 2 is slow loading data",
        ),
        (
            [
                {"stage": stage}
                for stage in ("data", "forward", "backward", "optimizer", "checkpoint")
            ],
            "Rank 2 is slow in the backward pass, rank 2 is slow writing checkpoints, "
            "rank 2 is slow loading data and 2 more are late",
        ),
    ],
)
def test_late_ranks_are_named(ranks: list[dict[str, Any]], sentence: str) -> None:
    """Ranks that are late alike are named in one breath, the costliest first."""
    assert named(*ranks) == sentence


def test_cost_is_that_of_all() -> None:
    """All late ranks together cost what is said, of all of the job's GPUs."""
    assert late_sentence(views({}, {"rank": 3, "gpus": {"data": 0.5}}), 64).endswith(
        "; 1.50 of 64 GPUs wait for them."
    )


def test_even_job_needs_no_names() -> None:
    """The ranks that were judged are the ones that are even."""
    assert even_sentence(AgedVerdict(VERDICT, 0.0), []) == (
        "No rank is late: the 4 ranks of the job need the same time for their work."
    )


def test_several_mild_ranks_are_told_by_the_latest() -> None:
    """Of ranks that are a little late, the sentence gives the latest one's excess."""
    mild = views({"kind": "mild", "ratio": 0.03}, {"rank": 3, "kind": "mild", "ratio": 0.04})

    assert even_sentence(AgedVerdict(VERDICT, 0.0), mild) == (
        "No rank is late enough for an alert: "
        "ranks 2 and 3 need up to 4% more time than their peers."
    )


def test_what_the_verdict_is_not_on_is_told() -> None:
    """Ranks that never stepped and steps that were not compared are said, none of them not."""
    some = type(VERDICT)(step=1, ranks={"all": 60}, absent=4)

    assert details(AgedVerdict(some, 0.0), [], 0.93) == [
        "4 of 64 ranks have not finished any step that all others have finished.",
        "The ranks compared 93% of their steps.",
    ]
    assert details(AgedVerdict(type(VERDICT)(step=1, ranks={"all": 64}), 0.0), [], 1.0) == []


def test_rank_that_nobody_may_wait_for_costs_nothing() -> None:
    """Where no wait was measured no GPU is said to wait."""
    unsynced = views({"kind": "unsynced"})

    said = AgedVerdict(type(VERDICT)(step=1, ranks={}, late=(LATE,)), 0.0)

    assert details(said, unsynced, None) == [
        "Rank 2 has needed 45% more time than its peers for 30 s, mostly in data."
    ]


def test_verdict_of_the_node_is_on_the_node() -> None:
    """Where no join speaks, the page says what it has not compared."""
    own = AgedVerdict(type(VERDICT)(step=1, ranks={"all": 64}), 0.0, NODE)

    assert even_sentence(own, []) == "No rank on this node is late."
    assert details(own, [], None)[-1].startswith("The job does not compare the steps of its ranks")
