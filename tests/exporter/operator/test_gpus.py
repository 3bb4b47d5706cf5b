"""Root, and nobody else, makes the exporter let go of the GPUs or forget some of them."""

import json
import os
from http import HTTPStatus
from typing import Any

import pytest

from exporter.operator.gpus import ACTIONS, GpuControl, GpuOrder
from exporter.ranks.store import ROOT


class Node:
    """Notes what is done to it: the supervisor and the remembered GPUs in one."""

    released = False

    def __init__(self) -> None:
        self.done: list[Any] = []

    def release(self, seconds: float) -> None:
        self.done.append(seconds)

    def resume(self) -> None:
        self.done.append("resume")

    def forget(self) -> int:
        self.done.append("forget")
        return 2


def answer(node: Node, body: bytes, uid: int | None = ROOT) -> tuple[HTTPStatus, dict[str, Any]]:
    return GpuControl(node, node).answer(body, uid)


def test_each_action_does_its_own() -> None:
    """A status does nothing; a release is for as long as it says."""
    node = Node()
    orders = [*(GpuOrder(action) for action in ACTIONS), GpuOrder("release", 30)]
    answers = [answer(node, order.to_json()) for order in orders]

    assert node.done == [600.0, "resume", "forget", 30.0]
    assert [status for status, _ in answers] == [HTTPStatus.OK] * 5
    assert [content["forgotten"] for _, content in answers] == [0, 0, 0, 2, 0]


def test_release_without_a_time_is_for_ten_minutes() -> None:
    """Whoever leaves the time out gets the GPUs back all the same."""
    node = Node()
    assert answer(node, b'{"action": "release"}')[0] == HTTPStatus.OK

    assert node.done == [600.0]


def test_release_is_told_when_it_is_done() -> None:
    """The answer says whether the files are closed, not whether that was asked."""
    node = Node()
    assert answer(node, GpuOrder("release").to_json())[1]["released"] is False
    node.released = True

    assert answer(node, GpuOrder("status").to_json())[1]["released"] is True


@pytest.mark.parametrize("uid", [None, os.geteuid() + 1])
def test_others_are_refused(uid: int | None) -> None:
    """Neither a user of the node nor anybody who comes over TCP can blind the exporter."""
    node = Node()
    status, content = answer(node, GpuOrder("release").to_json(), uid)

    assert status == HTTPStatus.FORBIDDEN
    assert "Only root and the exporter's own user" in content["error"]
    assert node.done == []


def test_exporters_own_user_may_ask() -> None:
    """Whoever could end the exporter may also release the GPUs."""
    assert answer(Node(), GpuOrder("status").to_json(), os.geteuid())[0] == HTTPStatus.OK


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ([], "An order is a JSON object"),
        ({"action": "release", "gpu": 0}, "An order is a JSON object"),
        ({"action": "reset"}, "use one of status, release, resume, forget"),
        ({"action": []}, "use one of"),
        ({"action": "release", "seconds": 0}, "above 0 and at most 86400"),
        ({"action": "release", "seconds": 86401}, "above 0 and at most 86400"),
        ({"action": "release", "seconds": "10m"}, "above 0"),
        ({"action": "release", "seconds": True}, "above 0"),
        ({"action": "release", "seconds": float("nan")}, "above 0"),
    ],
)
def test_wrong_order_is_one_sentence(fields: Any, sentence: str) -> None:
    """What is no order changes nothing, and says what one is."""
    node = Node()
    status, content = answer(node, json.dumps(fields).encode())

    assert status == HTTPStatus.UNPROCESSABLE_ENTITY
    assert sentence in content["error"]
    assert node.done == []


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000])
def test_what_is_no_json_is_one_sentence(body: bytes) -> None:
    """A broken body is answered, not raised."""
    assert answer(Node(), body)[1] == {
        "error": "The body is not JSON; send the order as one JSON object."
    }
