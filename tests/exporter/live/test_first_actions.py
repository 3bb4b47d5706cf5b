"""What to do first names the process, the node and the GPU, so that it can be typed as it is."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.live.causes import CauseView
from exporter.live.first_actions import first_action
from exporter.live.ranks import RankView, view_rank
from exporter.live.sentences import view_late
from exporter.ranks.store import HeldRank
from tests.exporter.snapshots import late, snapshot


def rank(number: int, **changes: Any) -> RankView:
    """A rank of this node, gpu-12, on the GPU of the same number."""
    view = view_rank(HeldRank(snapshot(rank=number, pid=20_770 + number), 0.0), None, 1.0, "gpu-12")
    return replace(view, gpu=number, last_step_age_seconds=1.0, **changes)


def said(state: str, *named: dict[str, Any], ranks: tuple[RankView, ...] = ()) -> str | None:
    """Return the first action in *state* with these late ranks; ranks 0 to 3 are here."""
    views = [view_late(late(**each), 0.0, {0, 1, 2, 3}) for each in named]
    return first_action("llama", state, None, views, ranks or [rank(number) for number in range(4)])


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({"stage": "data"}, "py-spy dump --pid 20772 on gpu-12"),
        ({"stage": "checkpoint"}, "py-spy dump --pid 20772 on gpu-12"),
        ({"stage": "backward"}, "py-spy dump --pid 20772 on gpu-12"),
        (
            {"kind": "pauses"},
            "py-spy record --duration 60 --pid 20772 -o pauses.svg on gpu-12",
        ),
        (
            {"rank": 17},
            "Open the live page of the node of rank 17, the instance of "
            'rankskew_rank_info{job_id="llama",rank="17"}.',
        ),
    ],
)
def test_straggler_without_a_cause_is_looked_at(changes: dict[str, Any], action: str) -> None:
    """Its code is looked at with py-spy, another node on its own page."""
    assert said("straggler", changes) == action


def test_cause_says_what_to_do() -> None:
    """What the cause asks for comes first; a node without one is looked at as a whole."""
    cause = CauseView("gc", "", 0.9, "", "freeze the heap", "", None, None, "", [])
    here = [rank(number) for number in range(4)]

    def about(state: str, cause: CauseView, **changes: Any) -> str | None:
        view = view_late(late(**changes), 0.0, range(4), cause=cause)
        return first_action("llama", state, None, [view], here)

    unknown = replace(cause, cause="unknown", first_action="py-spy dump")
    assert about("straggler", cause) == "freeze the heap"
    assert about("straggler", unknown) == "py-spy dump"
    assert about("slow_node", cause, kind="node") == "freeze the heap"
    assert about("slow_node", unknown, kind="node") == (
        "top -H on gpu-12: what runs there that does not belong to the job?"
    )


def test_rank_of_this_node_is_looked_at_first() -> None:
    """Of two late ranks the one that can be reached from here is named."""
    assert said("straggler", {"rank": 17}, {"rank": 1}) == "py-spy dump --pid 20771 on gpu-12"


def test_slow_node_is_looked_at_as_a_whole() -> None:
    """All its ranks are late, so what else runs there matters."""
    assert said("slow_node", {"kind": "node"}) == (
        "top -H on gpu-12: what runs there that does not belong to the job?"
    )


def test_hang_is_looked_at_where_it_is_held_up() -> None:
    """The rank that does not wait is the one whose stack is wanted."""
    ranks = (rank(0, stage="sync"), rank(1, stage="data"))

    assert said("hung", ranks=ranks) == "py-spy dump --pid 20771 on gpu-12"


def test_silent_rank_of_a_hang_may_be_stopped() -> None:
    """What has gone silent may have no stack left: is there a process, and in which state?"""
    ranks = (rank(0, stage="data"), rank(1, silent=True))

    assert said("hung", ranks=ranks) == "ps -o pid,stat,etime,wchan:32,args -p 20771 on gpu-12"


def test_hang_from_elsewhere_sends_one_there() -> None:
    """If every rank here waits, the other nodes are to be looked at."""
    action = said("hung", ranks=(rank(0, stage="sync"),))

    assert action is not None
    assert action.startswith("Look at the live pages of the job's other nodes")


@pytest.mark.parametrize("state", ["healthy", "finished", "starting"])
def test_nothing_is_to_be_done_when_nothing_is_wrong(state: str) -> None:
    """A quiet state gives no work."""
    assert said(state) is None


def test_probe_that_is_off_is_turned_on() -> None:
    """The reason why a job cannot be judged is what is mended."""
    assert first_action("llama", "not_judgeable", "off", [], []) == "rankskew control llama stages"
