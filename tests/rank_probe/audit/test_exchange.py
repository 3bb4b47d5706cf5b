"""Ranks, each a thread with a connection of its own, and the store in rank 0."""

import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from rank_probe.audit.exchange import Exchange, NoAnswer, why_not
from tests.rank_probe.audit.healthy import facts

WORLD = 3
# Longer than any of these tests may take; what waits on purpose waits for less.
PATIENCE_SECONDS = 30.0


@pytest.fixture
def environment() -> dict[str, str]:
    """Where the ranks meet, as srun or mpirun would have it: rank 0 serves the store."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def other(environment: dict[str, str], rank: int) -> int:
    """Return what *rank* hears after it posted."""
    exchange = Exchange(rank, WORLD, environment, PATIENCE_SECONDS)
    exchange.post(facts(rank))
    return exchange.hear()


def start(ranks: list[int], environment: dict[str, str]) -> list[Future[int]]:
    """Start *ranks* other than 0."""
    pool = ThreadPoolExecutor()
    return [pool.submit(other, environment, rank) for rank in ranks]


def test_everybody_hears_what_rank_0_decides(environment: dict[str, str]) -> None:
    """Rank 0 has the facts of all, and all end with its status."""
    others = start([1, 2], environment)
    first = Exchange(0, WORLD, environment, PATIENCE_SECONDS)
    first.post(facts(0))
    gathered, missing = first.gather(PATIENCE_SECONDS)
    first.tell(1, others=2)

    assert gathered == [facts(rank) for rank in range(WORLD)]
    assert missing == ()
    assert [one.result() for one in others] == [1, 1]


def test_rank_that_does_not_post_is_missing(environment: dict[str, str]) -> None:
    """Rank 0 does not wait for longer than it is told, and the others hear all the same."""
    others = start([2], environment)
    first = Exchange(0, WORLD, environment, PATIENCE_SECONDS)
    first.post(facts(0))
    first._store.wait(["facts/2"])
    began = time.monotonic()
    gathered, missing = first.gather(0.2)
    first.tell(0, others=1)

    assert [one.rank for one in gathered] == [0, 2]
    assert missing == (1,)
    assert time.monotonic() - began < PATIENCE_SECONDS / 3
    assert others[0].result() == 0


def test_what_cannot_be_read_is_missing(environment: dict[str, str]) -> None:
    """A rank of another release is named, and ends nobody's audit."""
    first = Exchange(0, 2, environment, PATIENCE_SECONDS)
    first.post(facts(0))
    first._store.set("facts/1", b"of another release")
    first._store.add("posted", 1)

    assert first.gather(PATIENCE_SECONDS) == ([facts(0)], (1,))


def test_nobody_who_serves_the_store_is_one_sentence(environment: dict[str, str]) -> None:
    """It names the address, and comes within the time."""
    began = time.monotonic()
    with pytest.raises(NoAnswer) as said:
        Exchange(1, WORLD, environment, 0.2)

    address = f"127.0.0.1:{environment['MASTER_PORT']}"
    assert str(said.value).startswith(f"nobody answers at {address}: ")
    assert time.monotonic() - began < PATIENCE_SECONDS / 3


def test_rank_0_that_never_answers_is_one_sentence(environment: dict[str, str]) -> None:
    """Without torch's frames."""
    with pytest.raises(NoAnswer) as said:
        Exchange(0, WORLD, environment, 0.2).hear()

    address = f"127.0.0.1:{environment['MASTER_PORT']}"
    assert str(said.value).startswith(f"the store at {address} does not answer: ")
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "MASTER_ADDR is not set"),
        ({"MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "http"}, "MASTER_PORT=http is not a number"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "29500"}, ""),
    ],
)
def test_launcher_must_say_where_ranks_meet(environment: dict[str, str], says: str) -> None:
    """Otherwise each rank looks at itself only, and says why."""
    assert why_not(environment).startswith(says)
    assert bool(why_not(environment)) == bool(says)
