"""The GPUs are let go of, read again or forgotten, as the operator asks."""

from typing import Any, get_args, get_type_hints

import pytest

from exporter.operator.gpus import GpuControl
from exporter.operator.orders import GpuOrder


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


def test_each_action_does_its_own() -> None:
    """A status does nothing; a release is for ten minutes, or as long as it says."""
    node = Node()
    actions = get_args(get_type_hints(GpuOrder)["action"])
    orders = [*(GpuOrder(action) for action in actions), GpuOrder("release", 30)]
    answers = [GpuControl(node, node).do(order) for order in orders]

    assert node.done == [600.0, "resume", "forget", 30.0]
    assert [answer.forgotten for answer in answers] == [0, 0, 0, 2, 0]


def test_release_is_told_when_it_is_done() -> None:
    """The answer shows whether the files are closed, not whether that was requested."""
    node = Node()
    control = GpuControl(node, node)
    assert control.do(GpuOrder("release")).released is False
    node.released = True

    assert control.do(GpuOrder("status")).released is True


@pytest.mark.parametrize("seconds", [0.0, -1.0, 86_401.0, float("nan"), float("inf")])
def test_release_for_ever_or_for_no_time_is_no_order(seconds: float) -> None:
    """Whoever forgets to resume loses a day at most."""
    with pytest.raises(ValueError, match="seconds must be above 0 and at most 86400"):
        GpuOrder("release", seconds)
