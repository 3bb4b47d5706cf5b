"""The operator's socket takes valid orders, and explains each refusal in one sentence."""

from typing import Any, get_args, get_type_hints

import pytest

from exporter.listeners.peer import Peer
from exporter.operator.app import operator_app
from exporter.operator.levels import Orders
from exporter.operator.orders import CONTROL_PATH, GPUS_PATH, GpuOrder, Order
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import LEVELS
from tests.exporter.asgi import Answer, ask
from tests.exporter.snapshots import snapshot

OWNER = Peer(1_000, "a-container")
FORM = "application/x-www-form-urlencoded"


class Socket:
    """The operator's application with one rank, and with GPUs to which it notes what is done."""

    def __init__(self, has_gpus: bool = True) -> None:
        self.done: list[Any] = []
        self.released = False
        store = RankStore()
        store.put(snapshot(), OWNER)
        self.orders = Orders(store)
        self.why_not_healthy: str | None = None
        gpus = self if has_gpus else None
        self._app = operator_app(self.orders, gpus, lambda: self.why_not_healthy)

    def release(self, seconds: float) -> None:
        self.done.append(seconds)

    def resume(self) -> None:
        self.done.append("resume")

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> Answer:
        answer = ask(self._app, "POST", path, body, content_type=content_type)
        assert answer is not None
        return answer

    def check(self) -> tuple[int, str]:
        answer = ask(self._app, "GET", "/-/healthy")
        assert answer is not None
        return answer.status, answer.text


@pytest.mark.parametrize("order", [Order("llama", "off"), Order("llama", "off", 0)])
def test_order_reaches_any_rank(order: Order) -> None:
    """What the command sends is what the exporter does, whoever the rank belongs to."""
    socket = Socket()
    answer = socket.post(CONTROL_PATH, order.to_json())

    assert (answer.status, answer.content) == (200, {"ranks": 1})
    assert socket.orders.level_for(snapshot(), OWNER) == "off"
    assert get_args(get_type_hints(Order)["level"]) == LEVELS


def test_each_action_does_its_own_to_the_gpus() -> None:
    """A status does nothing; a release is for ten minutes, or as long as it says.

    The answer shows whether the files are closed, not whether that was requested.
    """
    socket = Socket()
    actions = get_args(get_type_hints(GpuOrder)["action"])
    orders = [*(GpuOrder(action) for action in actions), GpuOrder("release", 30)]
    bodies = [order.to_json() for order in orders] + [b'{"action": "release"}']
    answers = [socket.post(GPUS_PATH, body).content for body in bodies]

    assert socket.done == [600.0, "resume", 30.0, 600.0]
    assert not any(answer["released"] for answer in answers)
    socket.released = True
    assert socket.post(GPUS_PATH, GpuOrder("status").to_json()).content["released"]


@pytest.mark.parametrize("seconds", [0.0, -1.0, 86_401.0, float("nan"), float("inf")])
def test_release_for_ever_or_for_no_time_is_no_order(seconds: float) -> None:
    """Whoever forgets to resume loses a day at most."""
    with pytest.raises(ValueError, match="seconds must be above 0 and at most 86400"):
        GpuOrder("release", seconds)


def test_node_without_gpus_takes_no_orders_for_them() -> None:
    answer = Socket(has_gpus=False).post(GPUS_PATH, GpuOrder("release").to_json())

    assert answer.status == 404
    assert "serves POST to /v1/control" in answer.content["error"]


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        (CONTROL_PATH, b"", "The body is missing"),
        (CONTROL_PATH, b"{", "The body is not JSON"),
        (CONTROL_PATH, b"[" * 60_000, "There was an error parsing the body"),
        (CONTROL_PATH, b"[]", "The body must be a JSON object"),
        (CONTROL_PATH, b'{"job_id":"a","level":"off","colour":1}', "Field colour is wrong"),
        (CONTROL_PATH, b'{"level":"off"}', "Field job_id is missing"),
        (CONTROL_PATH, b'{"job_id":"a"}', "Field level is missing"),
        (CONTROL_PATH, b'{"job_id":"a","level":["off"]}', "Field level is wrong: input should"),
        (CONTROL_PATH, b'{"job_id":"a","level":"off","rank":"x"}', "Field rank is wrong"),
        (GPUS_PATH, b'{"action":"release","gpu":0}', "Field gpu is wrong"),
        (GPUS_PATH, b'{"action":"reset"}', "'status', 'release' or 'resume'"),
        (GPUS_PATH, b'{"action":"release","seconds":0}', "above 0 and at most 86400"),
        (GPUS_PATH, b'{"action":"release","seconds":NaN}', "above 0 and at most 86400"),
        (GPUS_PATH, b'{"action":"release","seconds":"10m"}', "Field seconds is wrong"),
    ],
)
def test_what_is_no_order_is_one_sentence(path: str, body: bytes, sentence: str) -> None:
    """Whatever is posted changes nothing, and the answer names what is wrong."""
    socket = Socket()
    answer = socket.post(path, body)

    assert answer.status in (400, 422)
    assert sentence in answer.content["error"]
    assert answer.content["error"].endswith(".")
    assert socket.done == []
    assert socket.orders.level_for(snapshot(), OWNER) is None


def test_body_of_another_type_is_told_which() -> None:
    """curl --data sends a form unless it is told otherwise."""
    answer = Socket().post(CONTROL_PATH, Order("llama", "off").to_json(), FORM)

    assert answer.content == {"error": "The body must be a JSON object, sent as application/json."}


def test_health_is_told_here_too() -> None:
    """A container's own check needs no certificate and no login, and cannot be kept out by jobs."""
    socket = Socket()
    assert socket.check() == (200, "The exporter is healthy.\n")

    socket.why_not_healthy = "No GPU has answered for 10 minutes."
    assert socket.check() == (503, "No GPU has answered for 10 minutes.\n")
