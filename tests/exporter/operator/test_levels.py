"""An order reaches its ranks, from those who may give it, for as long as the ranks run."""

import pytest

from exporter.listeners.peer import Peer
from exporter.operator.levels import NobodyThere, Orders, everybodys, own
from exporter.operator.orders import Order
from exporter.ranks.store import Forbidden, RankStore
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.snapshots import snapshot

USER, OTHER = Peer(1_000), Peer(1_001)
IN_CONTAINER = Peer(1_000, "a-container")


class Node:
    """A store with ranks in it, and the orders for them."""

    def __init__(self) -> None:
        self.now = 5_000.0
        self.store = RankStore(clock=lambda: self.now)
        self.orders = Orders(self.store)

    def push(self, peer: Peer | None = USER, **changes: object) -> Snapshot:
        """Take a snapshot in as the ingest does."""
        pushed = snapshot(**changes)
        self.orders.forget_ended()
        self.store.put(pushed, peer)
        return pushed

    def level(self, peer: Peer | None = USER, **changes: object) -> str | None:
        return self.orders.level_for(snapshot(**changes), peer)


@pytest.fixture
def node() -> Node:
    """Return a node with ranks 0 and 1 of the user's job."""
    node = Node()
    node.push(rank=0)
    node.push(rank=1)
    return node


def test_nothing_was_asked(node: Node) -> None:
    """Without an order a rank gets no level."""
    assert node.level() is None


def test_order_for_a_job_is_for_each_of_its_ranks(node: Node) -> None:
    """All ranks of the job get the level, also one that comes later, and no other job's."""
    assert node.orders.give(Order("llama", "off"), own(USER)) == 2

    assert [node.level(rank=rank) for rank in (0, 1, 2)] == ["off"] * 3
    assert node.level(job_id="other") is None


def test_order_for_one_rank_leaves_the_others(node: Node) -> None:
    """With a rank, only that rank gets the level."""
    assert node.orders.give(Order("llama", "detail", 1), own(USER)) == 1

    assert (node.level(rank=0), node.level(rank=1)) == (None, "detail")


def test_last_order_counts(node: Node) -> None:
    """A rank's own order is over the job's, until the job gets a new one."""
    node.orders.give(Order("llama", "off"), own(USER))
    node.orders.give(Order("llama", "detail", 1), own(USER))
    assert (node.level(rank=0), node.level(rank=1)) == ("off", "detail")

    node.orders.give(Order("llama", "stages"), own(USER))
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
        node.orders.give(order, own(USER))

    assert str(refusal.value) == sentence


def test_operator_may_control_every_rank(node: Node) -> None:
    """Whoever answers for the node can turn any probe off."""
    node.push(IN_CONTAINER, rank=2)
    node.push(None, job_id="local")

    assert node.orders.give(Order("llama", "off"), everybodys) == 3
    assert node.orders.give(Order("local", "off"), everybodys) == 1
    levels = [node.level(USER), node.level(IN_CONTAINER), node.level(None, job_id="local")]
    assert levels == ["off"] * 3


@pytest.mark.parametrize("peer", [OTHER, None, Peer(0), IN_CONTAINER])
def test_others_may_not(node: Node, peer: Peer | None) -> None:
    """Neither another user, nor root in some container, nor a client over TCP turns it off."""
    with pytest.raises(Forbidden, match="Job 'llama' belongs to another user or container"):
        node.orders.give(Order("llama", "off"), own(peer))

    assert node.level() is None


def test_user_controls_what_they_run_in_a_container() -> None:
    """The same user on the node is not a stranger; another container is."""
    node = Node()
    node.push(IN_CONTAINER)

    assert node.orders.give(Order("llama", "off"), own(USER)) == 1
    assert node.level(IN_CONTAINER) == "off"
    with pytest.raises(Forbidden):
        node.orders.give(Order("llama", "detail"), own(Peer(1_000, "another")))


def test_ranks_that_report_over_tcp_are_controlled_over_tcp() -> None:
    """Their owner is unknown, so any client of that listener may control them."""
    node = Node()
    node.push(None)

    assert node.orders.give(Order("llama", "off"), own(None)) == 1
    assert node.level(None) == "off"


def test_container_controls_only_its_own_part_of_a_job(node: Node) -> None:
    """Two containers of one job do not control each other's ranks."""
    node.push(IN_CONTAINER, rank=2)

    assert node.orders.give(Order("llama", "off"), own(IN_CONTAINER)) == 1
    assert node.level(IN_CONTAINER, rank=2) == "off"
    assert node.level(USER, rank=0) is None


def test_order_survives_a_restart_of_the_job(node: Node) -> None:
    """A rank that crashed and came back is still at the level that was asked for."""
    node.orders.give(Order("llama", "off"), own(USER))
    node.push(rank=0, attempt=1)

    assert node.level(rank=0, attempt=1) == "off"


@pytest.mark.parametrize("finished", [True, False])
def test_new_run_of_the_name_starts_as_any_other(node: Node, finished: bool) -> None:
    """Once the job has ended, cleanly or by silence, what was asked of it is forgotten."""
    node.orders.give(Order("llama", "off"), own(USER))
    if finished:
        for rank in (0, 1):
            node.push(rank=rank, sequence=2, finished=True)
    else:
        node.now += 3_601
    node.push(attempt=1)

    assert node.level(attempt=1) is None
