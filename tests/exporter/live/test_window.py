"""The bars of a rank are the mean step of its last minute."""

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from exporter.live.window import RankWindow
from tests.exporter.live.stepping import Node, stepped
from tests.exporter.snapshots import snapshot, verdict


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
