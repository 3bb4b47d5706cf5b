"""An order reaches its ranks, from those who may give it, for as long as the ranks run."""

import pytest

from exporter.listeners.peer import Peer
from exporter.operator.levels import MayControl, NobodyThere, Orders, everybodys, own
from exporter.operator.orders import Order
from exporter.ranks.store import Forbidden, RankStore
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot

USER, OTHER = Peer(1_000), Peer(1_001)
IN_CONTAINER = Peer(1_000, "a-container")


class Node:
    """A store with ranks 0 and 1 of the user's job, and the orders for them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.orders = Orders(self.store)
        for rank in (0, 1):
            self.push(rank=rank)

    def push(self, peer: Peer | None = USER, **changes: object) -> None:
        """Take a snapshot in as the ingest does."""
        self.orders.forget_ended()
        self.store.put(snapshot(**changes), peer)

    def give(self, order: Order, may_control: MayControl | None = None) -> int:
        return self.orders.give(order, may_control or own(USER))

    def level(self, peer: Peer | None = USER, **changes: object) -> str | None:
        return self.orders.level_for(snapshot(**changes), peer)


@pytest.fixture
def node() -> Node:
    return Node()


def test_order_for_a_job_is_for_each_of_its_ranks(node: Node) -> None:
    """All ranks of the job get the level, also one that comes later, and no other job's."""
    assert node.level() is None
    assert node.give(Order("llama", "off")) == 2

    assert [node.level(rank=rank) for rank in (0, 1, 2)] == ["off"] * 3
    assert node.level(job_id="other") is None


def test_last_order_counts(node: Node) -> None:
    """A rank's own order is over the job's, until the job gets a new one."""
    assert node.give(Order("llama", "detail", 1)) == 1
    assert (node.level(rank=0), node.level(rank=1)) == (None, "detail")
    node.give(Order("llama", "off"))
    node.give(Order("llama", "detail", 1))
    assert (node.level(rank=0), node.level(rank=1)) == ("off", "detail")

    node.give(Order("llama", "stages"))
    assert (node.level(rank=0), node.level(rank=1)) == ("stages", "stages")


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (
            Order("nobody", "off"),
            "No rank of job 'nobody' runs on this node; jobs that do: 'llama'.",
        ),
        (Order("llama", "off", 7), "Job 'llama' has no rank 7 on this node."),
    ],
)
def test_order_for_nobody_is_refused(node: Node, order: Order, sentence: str) -> None:
    """A mistyped job or rank is not kept for later, and the answer names the existing ones."""
    with pytest.raises(NobodyThere) as refusal:
        node.give(order)

    assert str(refusal.value) == sentence


def test_operator_may_control_every_rank(node: Node) -> None:
    """Whoever answers for the node can turn any probe off."""
    node.push(IN_CONTAINER, rank=2)
    node.push(None, job_id="local")

    assert node.give(Order("llama", "off"), everybodys) == 3
    assert node.give(Order("local", "off"), everybodys) == 1
    levels = [node.level(USER), node.level(IN_CONTAINER), node.level(None, job_id="local")]
    assert levels == ["off"] * 3


@pytest.mark.parametrize("peer", [OTHER, None, Peer(0), IN_CONTAINER])
def test_others_may_not(node: Node, peer: Peer | None) -> None:
    """Neither another user, nor root in some container, nor a client over TCP turns it off."""
    with pytest.raises(Forbidden, match="Job 'llama' belongs to another user or container"):
        node.give(Order("llama", "off"), own(peer))

    assert node.level() is None


def test_user_controls_what_they_run_in_a_container(node: Node) -> None:
    """The same user on the node is not a stranger; another container is."""
    node.push(IN_CONTAINER, job_id="pod")

    assert node.give(Order("pod", "off")) == 1
    assert node.level(IN_CONTAINER, job_id="pod") == "off"
    with pytest.raises(Forbidden):
        node.give(Order("pod", "detail"), own(Peer(1_000, "another")))


def test_container_controls_only_its_own_part_of_a_job(node: Node) -> None:
    node.push(IN_CONTAINER, rank=2)

    assert node.give(Order("llama", "off"), own(IN_CONTAINER)) == 1
    assert node.level(IN_CONTAINER, rank=2) == "off"
    assert node.level(USER, rank=0) is None


def test_ranks_that_report_over_tcp_are_controlled_over_tcp(node: Node) -> None:
    """Their owner is unknown, so any client of that listener may control them."""
    node.push(None, job_id="tcp")

    assert node.give(Order("tcp", "off"), own(None)) == 1
    assert node.level(None, job_id="tcp") == "off"


def test_order_survives_a_restart_of_the_job(node: Node) -> None:
    """A rank that crashed and came back is still at the level that was asked for."""
    node.give(Order("llama", "off"))
    node.push(rank=0, attempt=1)

    assert node.level(rank=0, attempt=1) == "off"


@pytest.mark.parametrize("finished", [True, False])
def test_new_run_of_the_name_starts_as_any_other(node: Node, finished: bool) -> None:
    """Once the job has ended, cleanly or by silence, what was asked of it is forgotten."""
    node.give(Order("llama", "off"))
    if finished:
        for rank in (0, 1):
            node.push(rank=rank, sequence=2, finished=True)
    else:
        node.clock.seconds += 3_601
    node.push(attempt=1)

    assert node.level(attempt=1) is None
