"""The operator's socket takes valid orders, and explains each refusal in one sentence."""

from typing import Any, get_args, get_type_hints

import pytest

from exporter.listeners.peer import Peer
from exporter.operator.app import operator_app
from exporter.operator.gpus import GpuControl
from exporter.operator.levels import Orders
from exporter.operator.orders import GpuOrder, Order
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import LEVELS
from tests.exporter.asgi import Answer, ask
from tests.exporter.operator.test_gpus import Node
from tests.exporter.snapshots import snapshot

OWNER = Peer(1_000, "a-container")


class Socket:
    """The operator's application, with one rank and GPUs."""

    def __init__(self, has_gpus: bool = True) -> None:
        self.gpus = Node()
        store = RankStore()
        store.put(snapshot(), OWNER)
        self.orders = Orders(store)
        control = GpuControl(self.gpus, self.gpus) if has_gpus else None
        self.why_not_healthy: str | None = None
        self._app = operator_app(self.orders, control, lambda: self.why_not_healthy)

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> Answer:
        answer = ask(self._app, "POST", path, body, content_type=content_type)
        assert answer is not None
        return answer

    def check(self) -> Answer:
        answer = ask(self._app, "GET", "/-/healthy")
        assert answer is not None
        return answer


@pytest.mark.parametrize("order", [Order("llama", "off"), Order("llama", "off", 0)])
def test_order_reaches_any_rank(order: Order) -> None:
    """What the command sends is what the exporter does, whoever the rank belongs to."""
    socket = Socket()
    answer = socket.post("/v1/control", order.to_json())

    assert (answer.status, answer.content) == (200, {"ranks": 1})
    assert socket.orders.level_for(snapshot(), OWNER) == "off"


def test_gpus_are_released() -> None:
    """The order reaches what holds the GPUs; whoever leaves the time out gets ten minutes."""
    socket = Socket()
    answers = [
        socket.post("/v1/gpus", body)
        for body in (GpuOrder("release", 30).to_json(), b'{"action": "release"}')
    ]

    assert [answer.content for answer in answers] == [{"released": False, "forgotten": 0}] * 2
    assert socket.gpus.done == [30.0, 600.0]


def test_node_without_gpus_takes_no_orders_for_them() -> None:
    """Where no collector reads GPUs there is nothing to let go of."""
    answer = Socket(has_gpus=False).post("/v1/gpus", GpuOrder("release").to_json())

    assert answer.status == 404
    assert "serves POST to /v1/control" in answer.content["error"]


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/v1/control", b"", "The body is missing"),
        ("/v1/control", b"{", "The body is not JSON"),
        ("/v1/control", b"[" * 60_000, "There was an error parsing the body"),
        ("/v1/control", b"[]", "The body must be a JSON object"),
        ("/v1/control", b'{"job_id":"a","level":"off","colour":1}', "Field colour is wrong"),
        ("/v1/control", b'{"level":"off"}', "Field job_id is missing"),
        ("/v1/control", b'{"job_id":"a"}', "Field level is missing"),
        ("/v1/control", b'{"job_id":"a","level":["off"]}', "Field level is wrong: input should"),
        ("/v1/control", b'{"job_id":"a","level":"off","rank":"x"}', "Field rank is wrong"),
        ("/v1/gpus", b'{"action":"release","gpu":0}', "Field gpu is wrong"),
        ("/v1/gpus", b'{"action":"reset"}', "'status', 'release', 'resume' or 'forget'"),
        ("/v1/gpus", b'{"action":"release","seconds":0}', "above 0 and at most 86400"),
        ("/v1/gpus", b'{"action":"release","seconds":NaN}', "above 0 and at most 86400"),
        ("/v1/gpus", b'{"action":"release","seconds":"10m"}', "Field seconds is wrong"),
    ],
)
def test_what_is_no_order_is_one_sentence(path: str, body: bytes, sentence: str) -> None:
    """Whatever is posted changes nothing, and the answer names what is wrong."""
    socket = Socket()
    answer = socket.post(path, body)

    assert answer.status in (400, 422)
    assert sentence in answer.content["error"]
    assert answer.content["error"].endswith(".")
    assert socket.gpus.done == []
    assert socket.orders.level_for(snapshot(), OWNER) is None


def test_body_of_another_type_is_told_which() -> None:
    """curl --data sends a form unless it is told otherwise."""
    form: Any = "application/x-www-form-urlencoded"
    answer = Socket().post("/v1/control", Order("llama", "off").to_json(), form)

    assert answer.content == {"error": "The body must be a JSON object, sent as application/json."}


def test_levels_are_the_probes() -> None:
    """An order can ask for each level that there is."""
    assert get_args(get_type_hints(Order)["level"]) == LEVELS


def test_health_is_told_here_too() -> None:
    """A container's own check needs no certificate and no login, and cannot be kept out by jobs."""
    socket = Socket()
    assert (socket.check().status, socket.check().text) == (200, "The exporter is healthy.\n")

    socket.why_not_healthy = "No GPU has answered for 10 minutes."
    assert (socket.check().status, socket.check().text) == (
        503,
        "No GPU has answered for 10 minutes.\n",
    )
