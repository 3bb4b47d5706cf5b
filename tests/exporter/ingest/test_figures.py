"""A rank learns its own figures from the answers to its pushes."""

from typing import Any

from exporter.ingest.app import IngestApp, IngestCounts
from exporter.operator.levels import Orders
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.asgi import ask
from tests.exporter.evidence.node import USER, FakeNode
from tests.exporter.snapshots import snapshot


def app(node: FakeNode) -> IngestApp:
    figures = node.service.figures_for
    return IngestApp(
        node.store, IngestCounts(), Orders(node.store), 65_536, jobs=None, figures=figures
    )


def push(app: IngestApp, pushed: Snapshot) -> dict[str, Any]:
    answer = ask(app, "POST", "/v1/snapshots", pushed.to_json(), peer=USER)
    assert answer is not None
    assert answer.status == 200
    content: dict[str, Any] = answer.content
    return content


def test_exporter_without_evidence_says_nothing() -> None:
    """The answer to a push is empty, as it has always been."""
    store = FakeNode().store

    assert push(IngestApp(store, IngestCounts(), Orders(store), 65_536), snapshot()) == {}


def test_figures_come_every_ten_seconds_and_never_in_between() -> None:
    """A push a second is answered with them once in ten, and none waits for them to be made."""
    node = FakeNode(gpus=1)
    listener = app(node)
    told: dict[int, list[int]] = {0: [], 1: []}
    for second in range(1, 62):
        node.run(1)
        for rank in (0, 1) if second > 3 else (0,):
            stages = {"data": 0.1 * second}
            pushed = snapshot(rank=rank, sequence=second, steps=2 * second, stage_seconds=stages)
            answer = push(listener, pushed)
            if "figures" in answer:
                told[rank].append(second)
                assert answer["figures"]["data_seconds"] == 0.05

    assert told == {0: [11, 21, 31, 41, 51, 61], 1: [11, 21, 31, 41, 51, 61]}


def test_push_that_is_ignored_is_not_told_figures() -> None:
    """The probe repeats a push whose answer was lost; the next one that is news has them."""
    node = FakeNode()
    listener = app(node)
    for second in range(1, 13):
        node.run(1)
        stages = {"data": 0.1 * second}
        pushed = snapshot(sequence=second, steps=2 * second, stage_seconds=stages)
        if second < 11:
            push(listener, pushed)
    again = snapshot(sequence=10)

    assert push(listener, again) == {}
    assert "figures" in push(listener, pushed)
