"""The page's data as a whole: what it lists, and that it is always JSON."""

import json
from dataclasses import replace

import pytest

from exporter.live.page import LiveView
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from rank_probe.version import __version__
from tests.exporter.live.stepping import START, Node, served, stepped
from tests.exporter.snapshots import CHANGE, late, verdict


def test_node_without_ranks_has_no_jobs() -> None:
    """Before any report, the page has an empty list and draws nothing."""
    view = LiveView(NodeJobs(RankStore()))

    assert view.summary().jobs == []
    view.sample(START, START)
    assert served(view) == {
        "version": __version__,
        "host": "",
        "grafana_url": None,
        "timestamp_seconds": START,
        "window_seconds": 60.0,
        "gpus_visible": None,
        "jobs": [],
        "gpus": [],
    }


def test_gpus_are_counted_once_the_driver_was_asked() -> None:
    """Not known yet, none at all and some are three different things to say."""
    answers = iter([None, 0, 8])
    view = LiveView(NodeJobs(RankStore()), lambda: next(answers))
    said = []
    for _ in range(3):
        view.sample(START, START)
        said.append(view.summary().gpus_visible)

    assert said == [None, 0, 8]


@pytest.mark.parametrize("number", [0.0, 5e-324, 1e-310, 1e15])
def test_page_is_json_whatever_number_a_rank_reports(number: float) -> None:
    """No sum, mean or ratio of what is taken in is infinite or not a number."""
    node = Node(ranks=2)
    node.said = verdict(
        step_seconds=number,
        slowdown=number,
        gpus_lost={"persistent": number},
        late=(late(ratio=number, gpus={"data": number}, since_seconds=number),),
        changes=(replace(CHANGE, ratio=number, since_seconds=number),),
    )
    for _ in range(90):
        node.step({"data": number, "sync": number})
        node.pass_second()

    json.dumps(served(node.view), allow_nan=False)


def test_forgotten_rank_leaves_the_page() -> None:
    """What the store no longer holds is not shown, and a new job of that name starts empty."""
    node = stepped()
    node.now += 4000
    node.view.sample(node.now, node.now)

    assert served(node.view)["jobs"] == []
