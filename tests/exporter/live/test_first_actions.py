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

LOOK = "py-spy dump --pid 20772 on gpu-12"
CAUSE = CauseView("gc", "", 0.9, "", "freeze the heap", "", None, None, "", [])
UNKNOWN = replace(CAUSE, cause="unknown", first_action="py-spy dump")
WHOLE_NODE = "top -H on gpu-12: what runs there that does not belong to the job?"


def rank(number: int, **changes: Any) -> RankView:
    """A rank of this node, gpu-12, on the GPU of the same number."""
    view = view_rank(HeldRank(snapshot(rank=number, pid=20_770 + number), 0.0), None, 1.0, "gpu-12")
    return replace(view, gpu=number, last_step_age_seconds=1.0, **changes)


def said(
    state: str,
    *named: dict[str, Any],
    ranks: tuple[RankView, ...] = (),
    cause: CauseView | None = None,
) -> str | None:
    """Return the first action in *state* with these late ranks; ranks 0 to 3 are here."""
    views = [view_late(late(**each), 0.0, {0, 1, 2, 3}, cause=cause) for each in named]
    return first_action("llama", state, None, views, ranks or [rank(number) for number in range(4)])


@pytest.mark.parametrize(
    ("state", "changes", "cause", "action"),
    [
        ("straggler", {}, None, LOOK),
        (
            "straggler",
            {"kind": "pauses"},
            None,
            "py-spy record --duration 60 --pid 20772 -o pauses.svg on gpu-12",
        ),
        (
            "straggler",
            {"rank": 17},
            None,
            "Open the live page of the node of rank 17, the instance of "
            'rankskew_rank_info{job_id="llama",rank="17"}.',
        ),
        ("straggler", {}, CAUSE, "freeze the heap"),
        ("straggler", {}, UNKNOWN, "py-spy dump"),
        ("slow_node", {"kind": "node"}, CAUSE, "freeze the heap"),
        ("slow_node", {"kind": "node"}, UNKNOWN, WHOLE_NODE),
        ("slow_node", {"kind": "node"}, None, WHOLE_NODE),
    ],
)
def test_late_rank_is_mended_or_looked_at(
    state: str, changes: dict[str, Any], cause: CauseView | None, action: str
) -> None:
    """As its cause asks for; without one its code, its whole node, or the page of its node."""
    assert said(state, changes, cause=cause) == action


def test_rank_of_this_node_is_looked_at_first() -> None:
    assert said("straggler", {"rank": 17}, {"rank": 2}) == LOOK


@pytest.mark.parametrize(
    ("ranks", "action"),
    [
        # The rank that does not wait is the one whose stack is wanted.
        ((rank(0, stage="sync"), rank(2, stage="data")), LOOK),
        # What has gone silent may have no stack left: is there a process, and in which state?
        (
            (rank(0, stage="data"), rank(1, silent=True)),
            "ps -o pid,stat,etime,wchan:32,args -p 20771 on gpu-12",
        ),
        (
            (rank(0, stage="sync"),),
            "Look at the live pages of the job's other nodes: "
            'rankskew_node_ranks{job_id="llama"} has them all.',
        ),
    ],
)
def test_hang_is_looked_at_where_it_is_held_up(ranks: tuple[RankView, ...], action: str) -> None:
    """If every rank here waits, on the other nodes."""
    assert said("hung", ranks=ranks) == action


def test_quiet_state_gives_no_work() -> None:
    """And the reason why a job cannot be judged is what is mended."""
    assert {said(state) for state in ("healthy", "finished", "starting")} == {None}
    assert first_action("llama", "not_judgeable", "off", [], []) == "rankskew control llama stages"
