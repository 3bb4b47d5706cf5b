"""The judge's verdict as the page repeats it, the bars of its ranks, and what to do first."""

import gc
import weakref
from dataclasses import asdict, replace
from typing import Any

import pytest

from exporter.causes.model import Cause
from exporter.live.causes import CauseView
from exporter.live.first_actions import first_action
from exporter.live.ranks import RankView, view_rank
from exporter.live.sentences import view_late
from exporter.live.window import RankWindow
from exporter.ranks.store import HeldRank
from rank_probe.judge.verdict import Together
from tests.exporter.live.node_data import CAUSE, HOT
from tests.exporter.live.stepping import EVEN, Node, stepped
from tests.exporter.snapshots import CHANGE, late, snapshot, verdict

LINES = [
    {"stage": "data", "place": "Corpus.__next__ (corpus.py:41)", "share": 0.71},
    {"stage": "data", "place": "parse (corpus.py:70)", "share": 0.125},
    {"stage": "forward", "place": "<b>loss</b> (train.py:9)", "share": 1.0},
]
IN_CODE = (
    "Code of rank 2: data: 71% in Corpus.__next__ (corpus.py:41), 12% in parse (corpus.py:70); "
    "forward: 100% in <b>loss</b> (train.py:9)."
)


def test_late_rank_is_named_as_the_judge_names_it() -> None:
    """Who is late, where and at what cost is one sentence; the figures are next to it."""
    node = Node()
    said = node.judged(verdict())

    assert said["sentence"] == "Rank 2 is slow loading data; 1.00 of 4 GPUs wait for it."
    assert (said["state"], said["reason"], said["judge"]) == ("straggler", None, "join")
    assert said["late"] == [
        {
            "rank": 2,
            "peer_group": "all",
            "stage": "data",
            "kind": "persistent",
            "ratio": 0.45,
            "gpus_lost": 1.0,
            "gpus_by_stage": {"data": 0.75, "forward": 0.25},
            "late_for_seconds": 30.0,
            "is_here": True,
            "costs_enough": True,
            "cause": None,
            "every_steps": 0,
            "pause_seconds": 0.0,
            "has_risen": False,
        }
    ]
    assert said["details"] == [
        "Rank 2 has needed 45% more time than its peers for 30 s, mostly in data; "
        "1.00 GPUs wait for it.",
        "Steps take 1.44 times as long as without it.",
        "GPUs lost: 1.00 to late ranks; 0.25 to ranks that are late in turn, mostly in data; "
        "0.50 to waits that all ranks have in common.",
    ]
    assert (said["slowdown"], said["gpus_lost"]["persistent"]) == (1.44, 1.0)
    # Between verdicts it grows.
    later = node.wait(3, silent=(0, 1, 2, 3))["verdict"]
    assert later["late"][0]["late_for_seconds"] == 33.0


@pytest.mark.parametrize("said", [verdict(), None])
def test_late_ranks_lines_are_shown(said: dict[str, Any] | None) -> None:
    """With a judge or without; those of a rank that stopped reporting are old."""
    node = Node()
    node.change(2, late_lines=LINES)

    assert node.judged(said)["details"][-1] == IN_CODE
    assert [rank["late_lines"] for rank in node.run(1)["ranks"]] == [[], [], LINES, []]
    assert IN_CODE not in node.wait(20, silent=(2,))["verdict"]["details"]


@pytest.mark.parametrize(
    ("kind", "start", "end"),
    [
        ("mild", "No rank is late enough for an alert", ""),
        ("unsynced", "It is not known whether a rank is late", ", but no wait was measured"),
    ],
)
def test_rank_that_wakes_nobody_is_listed_and_the_job_even(kind: str, start: str, end: str) -> None:
    """A mild lateness is shown as such, and is no alarm."""
    said = Node().judged(verdict(late=(late(kind=kind),)))

    assert said["state"] == "healthy"
    assert said["sentence"] == f"{start}: rank 2 needs 45% more time than its peers{end}."
    assert [each["rank"] for each in said["late"]] == [2]


def test_rank_that_costs_too_little_is_no_straggler() -> None:
    """Below a hundredth of the job's GPUs the job is healthy, and the rank is in a sentence."""

    def costs(gpus: float) -> dict[str, Any]:
        return verdict(late=(late(gpus={"data": gpus}),), ranks={"all": 64})

    node = Node(world_size=64)
    said = node.judged(costs(0.63))
    assert (said["state"], said["first_action"], said["alert"]) == ("healthy", None, None)
    assert said["sentence"].startswith("No rank is late enough for an alert: rank 2 needs 45%")
    assert said["details"][0].startswith("Rank 2 has needed 45% more time")
    assert [each["costs_enough"] for each in said["late"]] == [False]

    assert node.judged(costs(0.64))["state"] == "straggler"


def test_cause_is_told_with_its_figures() -> None:
    node = Node()
    node.cause = CAUSE
    said = node.judged(verdict())

    assert said["details"][1] == f"Cause: {CAUSE.sentence}."
    assert said["first_action"] == CAUSE.first_action
    assert said["late"][0]["cause"] == HOT


def test_cause_of_nearly_all_leaves_no_other_guess() -> None:
    """An "or perhaps" after what explains 99 % would weaken a sure answer."""
    node = Node()

    def guesses(share: float) -> list[str]:
        node.cause = replace(CAUSE, share=share)
        told = node.judged(verdict())["late"][0]["cause"]
        return [each["cause"] for each in told["others"]]

    assert guesses(0.99) == []
    assert guesses(0.7) == [each.cause for each in CAUSE.others] != []


def test_ranks_that_wake_come_first() -> None:
    """Who reads the first late rank has one that is late, though a mild one may cost more."""
    said = Node().judged(verdict(late=(late(rank=1, kind="mild"), late(gpus={"data": 0.5}))))

    assert [each["rank"] for each in said["late"]] == [2, 1]
    assert said["sentence"] == "Rank 2 is slow loading data; 0.50 of 4 GPUs wait for it."


def test_change_of_a_group_is_told() -> None:
    """If no rank is late against its peers, the page shows what became slower."""
    said = Node().judged(EVEN | verdict(late=(), changes=(CHANGE,), gpus_lost={}, rotating={}))

    assert said["state"] == "healthy"
    assert said["details"] == [
        "Forward of peer group pp1 has taken 2.00 times as long as before for 5 min."
    ]
    assert said["changes"] == [asdict(CHANGE) | {"slower_ranks": [], "slower_spans": []}]
    assert said["change_causes"] == [None]


def test_change_is_told_with_the_cause_that_this_node_knows() -> None:
    """After the change itself, for people and for programs."""
    node = Node()
    node.why_slower = Cause("slow_device", "clocks", 0.9, "the clock is 1.4 GHz, before 1.9", "")
    said = node.judged(EVEN | verdict(late=(), changes=(CHANGE,), gpus_lost={}, rotating={}))

    assert said["details"][-1] == (
        "On this node, the cause of the longer forward: the clock is 1.4 GHz, before 1.9."
    )
    assert [each["detail"] for each in said["change_causes"]] == ["clocks"]


def test_set_of_late_ranks_is_told() -> None:
    """With what only they have in common; the figures are next to it."""
    many = (late(rank=1), late(rank=2))
    together = Together("data", 2, 300.0, ((1, 2),), "rack r12")
    said = Node().judged(verdict(late=many, together=(together,)))

    assert said["sentence"] == (
        "2 of 4 ranks (1 and 2: all of rack r12, and no others) have been slow loading data for "
        "5 min; 2.00 of 4 GPUs wait for them."
    )
    assert said["together"] == [asdict(together) | {"spans": [[1, 2]]}]


SAVES = {"rank": 0, "kind": "duty", "stage": "checkpoint", "gpus": {"checkpoint": 1.0}}
SAVES |= {"every_steps": 25, "pause_seconds": 1.02}


@pytest.mark.parametrize(
    ("judged", "state", "key", "value"),
    [
        # If the judge can name no rank, the page shows the reason.
        *(
            (verdict(reason=reason, late=()), "not_judgeable", "reason", reason)
            for reason in ("no_sync", "no_peers", "no_busy_time")
        ),
        # Where one of the late ranks is late with its node, the node is what is slow.
        (
            verdict(late=(late(), late(rank=3, kind="node"))),
            "slow_node",
            "runbook",
            "RankskewSlowNode",
        ),
        # What one rank does for all is quiet until it costs a twentieth of the GPUs.
        *(
            (verdict(late=(late(**SAVES | {"gpus": {"checkpoint": gpus}}),)), state, key, value)
            for gpus, state, key, value in (
                (0.19, "healthy", "alert", None),
                (
                    0.19,
                    "healthy",
                    "sentence",
                    "No rank is late: rank 0 saves every 25 steps for 1.0 s, and "
                    "0.19 GPUs wait for it.",
                ),
                (0.2, "straggler", "alert", "RankskewCheckpointStall"),
                (0.2, "straggler", "runbook", "RankskewCheckpointStall"),
                (
                    1.05,
                    "straggler",
                    "sentence",
                    "Rank 0 saves every 25 steps for 1.0 s; 1.05 of 4 GPUs wait for it.",
                ),
            )
        ),
        (verdict(late=(late(), late(**SAVES))), "straggler", "alert", "RankskewStraggler"),
        # The loss to ranks that are late in turn is worth an alert from a tenth of the GPUs on.
        (
            verdict(late=(), gpus_lost={"rotating": 0.4}, rotating={"data": 0.4}),
            "healthy",
            "alert",
            None,
        ),
        (
            verdict(late=(), gpus_lost={"rotating": 0.41}, rotating={"data": 0.41}),
            "rotating",
            "sentence",
            "Another rank is slow in each step, mostly loading data; "
            "0.41 of 4 GPUs wait for whichever it is.",
        ),
        # Even ranks that all wait are waiting for the network.
        (
            EVEN | {"gpus_lost": {"common": 1.2}},
            "healthy",
            "sentence",
            "No rank is late: the 4 ranks of the job need the same time for their work. "
            "All ranks wait for the network for 30% of each step.",
        ),
    ],
)
def test_state_is_what_the_judge_says(
    judged: dict[str, Any], state: str, key: str, value: str | None
) -> None:
    """With its reason, its sentence, its runbook and its alert."""
    said = Node().judged(judged)

    assert (said["state"], said[key]) == (state, value)
    assert (said["alert"] == "RankskewRotatingImbalance") == (state == "rotating")


def test_evaluator_of_this_node_is_not_missing() -> None:
    """A rank that reports and never steps is here: its absence from the steps is no news."""
    node = Node()
    node.said = EVEN | {"absent": 1}
    for _ in range(150):
        steps = node.states[0].steps + 1
        node.change(0, 1, 2, steps=steps, last_step_timestamp_seconds=node.now)
        node.pass_second()

    assert node.push()["verdict"]["state"] == "healthy"


def test_window_forgets_what_is_older_than_a_minute() -> None:
    """The bars are the last minute's: what a rank did before is not drawn."""
    node = Node()
    node.run(60)
    shown = []
    for _ in range(62):
        node.step({"data": 0.1, "sync": 0.4})
        shown.append(node.push()["ranks"][2]["stage_seconds"]["data"])

    assert 0.11 < shown[50] < 0.18
    assert shown[-1] == pytest.approx(0.1)


def test_stages_are_seconds_per_step_of_the_window() -> None:
    """Each rank's stages are means per step, in step order, and add up to its step."""
    job = Node().run(30)
    rank = job["ranks"][2]

    assert list(rank["stage_seconds"]) == ["data", "forward", "backward", "sync"]
    assert rank["stage_seconds"]["data"] == pytest.approx(0.19)
    assert rank["wait_seconds"] == pytest.approx(0.01)
    assert rank["step_seconds"] == pytest.approx(job["step_seconds"])
    assert rank["steps"] == job["steps"] == 60


def test_first_steps_are_not_drawn() -> None:
    node = Node()
    young = node.run(1, steps=1)
    node.step({"forward": 60.0})
    node.push()
    job = node.run(30)

    assert young["ranks"][0]["stage_seconds"] is None
    assert job["ranks"][0]["stage_seconds"]["forward"] == pytest.approx(0.1)


def test_slow_steps_are_drawn_over_more_than_a_minute() -> None:
    node = Node(ranks=2)
    for _ in range(12):
        node.step({"data": 3.0, "forward": 24.0, "sync": 3.5})
        job = node.wait(30)

    assert job["ranks"][1]["stage_seconds"]["data"] == pytest.approx(3.0)


def test_restarted_rank_starts_its_window_anew() -> None:
    """Counters of a new process are never subtracted from those of the old one."""
    node = stepped()
    node.states = {rank: replace(node.fresh(rank), pid=200 + rank) for rank in node.states}

    assert node.push()["ranks"][0]["stage_seconds"] is None
    assert node.run(30)["ranks"][0]["stage_seconds"] is not None


def test_shrinking_counters_harm_nobody() -> None:
    node = stepped(ranks=2)
    for _ in range(90):
        node.step({"data": -1.0, "sync": 0.5})
        node.pass_second()

    assert node.push()["ranks"][0]["stage_seconds"]["data"] == 0.0


class Watched(dict[str, Any]):
    """A verdict that can be weakly referenced."""


def test_minute_of_a_rank_holds_no_old_verdicts() -> None:
    """The window keeps only the steps and stages of snapshots, which are the smaller part."""
    window = RankWindow()
    old = Watched(verdict())
    forgotten = weakref.ref(old)
    window.add(1.0, snapshot(steps=10, stage_seconds={"data": 1.0}, verdict=old))
    del old
    window.add(2.0, snapshot(steps=20, stage_seconds={"data": 2.0}))
    gc.collect()

    assert window.stage_seconds() == {"data": 0.1}
    assert forgotten() is None


LOOK = "py-spy dump --pid 20772 on gpu-12"
GARBAGE = CauseView("gc", "", 0.9, "", "freeze the heap", "", None, None, "", [])
UNKNOWN = replace(GARBAGE, cause="unknown", first_action="py-spy dump")
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
        ("straggler", {}, GARBAGE, "freeze the heap"),
        ("straggler", {}, UNKNOWN, "py-spy dump"),
        ("slow_node", {"kind": "node"}, GARBAGE, "freeze the heap"),
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
