"""Rank 0 reads once what each rank knows of itself, and says what late ranks have in common."""

from collections.abc import Sequence

from rank_probe.join.peers import PATIENT_READINGS, PeerFacts
from rank_probe.join.store import facts_key
from rank_probe.process.facts import message
from tests.rank_probe.join.memory_world import MemoryStore, World


class CountingStore(MemoryStore):
    """A store that counts what is read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.read: list[str] = []

    def check(self, keys: Sequence[str]) -> bool:
        self.calls += 1
        return super().check(keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.read += keys
        return super().multi_get(keys)


def test_ranks_that_are_late_together_are_told_with_their_rack() -> None:
    """By all ranks, in the first verdict that names them."""
    facts = [{"node": f"n{rank}", "rack": f"r{rank // 2}"} for rank in range(6)]
    world = World(["all"] * 6, facts=facts)
    world.train(range(1, 30))
    world.train(range(30, 90), late=[2, 3])
    verdict = world.rounds[5].verdict

    assert verdict is not None
    (said,) = verdict["together"]
    assert said["since_seconds"] > 20
    assert said | {"since_seconds": 0} == {
        "stage": "data",
        "ranks": 2,
        "since_seconds": 0,
        "spans": [[2, 3]],
        "in_common": "rack r1",
    }


def test_facts_are_read_once() -> None:
    store = CountingStore()
    for rank in range(5000):
        store.set(facts_key(rank), message({"node": f"n{rank // 8}"}))
    facts = PeerFacts(store)
    for _ in range(30):
        facts.learn(range(5000))

    assert store.read == [facts_key(rank) for rank in range(5000)]
    assert store.calls == 20
    assert facts.known[599] == {"node": "n74"}
    assert facts.known[592] is facts.known[599]


def test_rank_that_tells_none_is_seldom_asked() -> None:
    """It may be of another release, and nothing is known of it; once it tells, it is read."""
    store = CountingStore()
    facts = PeerFacts(store)
    for _ in range(10 * PATIENT_READINGS):
        facts.learn([0])

    assert store.calls < 3 * PATIENT_READINGS
    assert facts.known == {}
    store.set(facts_key(0), b"nonsense")
    for _ in range(PATIENT_READINGS):
        facts.learn([0])
    assert facts.known == {0: {}}
