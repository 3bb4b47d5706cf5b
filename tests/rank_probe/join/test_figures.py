"""A late rank is told its peers' figures; a healthy job pays one small message a rank."""

import json
import math
import random
import struct
import threading
from collections.abc import Callable, Mapping, Sequence

import pytest

from rank_probe.join.figures import HEAD, MAGIC, OwnFigures, known, message, read_peers
from rank_probe.join.peers import PATIENT_READINGS, PeerFigures
from rank_probe.join.ring import digest
from rank_probe.join.rounds import Merging
from rank_probe.join.store import BATCH
from rank_probe.judge.verdict import Late, Verdict
from rank_probe.wire.figures import FIGURES
from tests.rank_probe.join.test_join import MemoryStore, World, vector

CLOCK = "sm_clock_hertz"
POWER = "gpu_power_watts"


class CountingStore(MemoryStore):
    """Counts its calls by kind, and the keys that were written."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.written: list[str] = []

    def set(self, key: str, value: bytes) -> None:
        self.written.append(key)
        super().set(key, value)

    def check(self, keys: Sequence[str]) -> bool:
        self.calls.append("check")
        return super().check(keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.calls.append("multi_get")
        return super().multi_get(keys)


def train(world: World, *late: int, rounds: int = 60) -> None:
    """Let *world* train so long, with *late* ranks that read 40 ms longer than the others."""
    for number in range(1, rounds + 1):
        steps = [
            vector(number, sync=1, data=45, backward=10)
            if rank in late
            else vector(number, sync=41, data=5, backward=10)
            for rank in range(len(world.rounds))
        ]
        world.step(*steps)
        world.round()


def tell(world: World, figures: Callable[[int], Mapping[str, float]]) -> None:
    for rank, each in enumerate(world.rounds):
        each.figures.tell(known(figures(rank)))


def peers_of(world: World, rank: int) -> dict[str, list[float]]:
    return world.rounds[rank].figures.peers


def verdict(*late: int, kind: str = "persistent") -> Verdict:
    named = [Late(rank, "all", "data", kind, 1.0, {}, 1.0, 1, 1.0) for rank in late]
    return Verdict(1, {"all": 4}, late=tuple(named))


def test_late_rank_reads_the_thirds_and_the_median_of_its_peers() -> None:
    """Of the ranks that are not late, in its group; nobody else is told anything."""
    world = World(["pp0"] * 3 + ["pp1"] * 5)
    tell(world, lambda rank: {CLOCK: 1e9 + rank, POWER: 100.0} if rank != 6 else {CLOCK: 5.0})
    train(world, 6)

    assert peers_of(world, 6).keys() == {CLOCK, POWER}
    assert peers_of(world, 6)[CLOCK] == pytest.approx([1e9 + 4, 1e9 + 4.5, 1e9 + 5], rel=1e-5)
    assert peers_of(world, 6)[POWER] == [100.0] * 3
    assert [peers_of(world, rank) for rank in range(8) if rank != 6] == [{}] * 7
    assert f"peers/{digest('pp0'):x}" not in world.store.values


def test_thirds_are_of_the_figures_values() -> None:
    """1 to 4: a third of the way from the smallest to the largest, half, two thirds."""
    world = World(["all"] * 5)
    tell(world, lambda rank: {POWER: float(rank)} if rank else {POWER: 99.0})
    train(world, 0)

    assert peers_of(world, 0)[POWER] == [2.0, 2.5, 3.0]


def test_group_of_late_ranks_only_is_its_own_measure() -> None:
    """Where nobody else is left, the late ranks count."""
    store = MemoryStore()
    for rank in (1, 2):
        store.values[f"figures/{rank}"] = message({POWER: float(rank)}, "all")
    share(store, verdict(1, 2), [1, 2])

    assert read_peers(store.values[f"peers/{digest('all'):x}"])[POWER][1] == 1.5


def share(store: MemoryStore, said: Verdict, ranks: Sequence[int]) -> None:
    peer_figures(store).share(said, ranks, 0.0)


def peer_figures(store: MemoryStore) -> PeerFigures:
    return PeerFigures(store, threading.Event(), 0.0)


def test_unknown_figures_are_left_out() -> None:
    """NaN neither counts for its peers nor arrives."""
    store = MemoryStore()
    for rank, power in enumerate([5.0, math.nan, 7.0]):
        store.values[f"figures/{rank}"] = message({POWER: power}, "all")
    share(store, verdict(0), range(3))

    assert read_peers(store.values[f"peers/{digest('all'):x}"]) == {POWER: [7.0] * 3}


def test_healthy_job_writes_one_message_a_rank_in_ten_seconds() -> None:
    """Whatever the exporter tells in between, and nobody reads."""
    world = World(["all"] * 3)
    store = world.store = CountingStore()
    for each in world.rounds:
        each._store = each.figures._store = store
    merging = world.rounds[0]._merging
    assert isinstance(merging, Merging)
    merging._store = store
    for number in range(1, 61):
        tell(world, lambda rank: {POWER: 1.0})
        world.step(*[vector(number, sync=1, data=5)] * 3)
        world.round()
    posted = [key for key in store.written if key.startswith("figures/")]

    assert 3 * 6 <= len(posted) <= 3 * 7
    assert not [key for key in store.values if key.startswith("peers/")]


def test_rank_that_is_late_no_longer_forgets_its_peers() -> None:
    """What its peers do explains nothing then."""
    store = MemoryStore()
    own = OwnFigures(store, 3)
    store.values[f"peers/{digest('all'):x}"] = HEAD.pack(MAGIC, 1, 0) + struct.pack("<3f", 1, 2, 3)
    late = {"late": [{"rank": 3, "kind": "persistent", "stage": "data"}]}
    own.read("all", late)
    assert own.peers == {FIGURES[0]: [1.0, 2.0, 3.0]}
    own.read("all", {"late": []})
    assert own.peers == {}
    own.read("all", late)
    own.read("all", None)
    assert own.peers == {}


def test_mildly_late_rank_costs_nothing() -> None:
    """It is no candidate for a page, so nobody looks for its cause."""
    store = CountingStore()
    share(store, verdict(1, kind="mild"), range(4))

    assert store.calls == []


def test_rank_0_reads_every_ten_seconds_and_at_once_for_a_new_rank() -> None:
    """One lateness of many ranks does not make it read each round."""
    store = CountingStore()
    for rank in range(4):
        store.values[f"figures/{rank}"] = message({POWER: 1.0}, "all")
    peers = peer_figures(store)
    readings = []
    for now, late in enumerate([[1]] * 12 + [[1, 2]] + [[1]] * 5 + [[]] * 3 + [[2]]):
        before = len(store.calls)
        peers.share(verdict(*late), range(4), float(now))
        if len(store.calls) > before:
            readings.append(now)

    assert readings == [0, 9, 12, 21]


def test_ranks_that_have_posted_none_are_not_asked_one_by_one() -> None:
    """A rank of another release costs a few calls, once a minute; without any there is no key."""
    ranks = 4 * BATCH
    store = CountingStore()
    for rank in set(range(ranks)) - {700}:
        store.values[f"figures/{rank}"] = message({POWER: 1.0}, "all")
    peers = peer_figures(store)
    counts = []
    for reading in range(PATIENT_READINGS + 1):
        before = len(store.calls)
        peers.share(verdict(3), range(ranks), 10.0 * reading)
        counts.append(len(store.calls) - before)

    assert counts[0] == counts[PATIENT_READINGS]
    assert counts[0] < 40
    assert counts[1:PATIENT_READINGS] == [2 * 4] * (PATIENT_READINGS - 1)
    none = CountingStore()
    share(none, verdict(3), range(8))
    assert none.values == {}


def test_rank_that_knows_nothing_posts_an_empty_message_once() -> None:
    """So that rank 0 finds a key of every rank."""
    store = CountingStore()
    own = OwnFigures(store, 3)
    for now in range(100):
        own.post("all", float(now))

    assert store.written == ["figures/3"]
    assert len(store.values["figures/3"]) < 300


def test_figures_that_are_told_no_longer_are_taken_back() -> None:
    """An exporter that is gone must not speak for its rank for hours."""
    store = MemoryStore()
    own = OwnFigures(store, 3)
    own.tell({POWER: 1.0})
    own.post("all", 0.0)
    full = store.values["figures/3"]
    own.post("all", 60.0)
    assert store.values["figures/3"] == full
    own.post("all", 61.0)
    assert store.values["figures/3"] == message({}, "all")
    own.tell({POWER: 1.0})
    own.post("all", 62.0)
    assert store.values["figures/3"] == full


@pytest.mark.parametrize("more", [-3, 5])
def test_message_of_another_release_is_read(more: int) -> None:
    """Its list of figures is shorter or longer; what both know counts."""
    count = len(FIGURES) + more
    store = MemoryStore()
    for rank in range(3):
        head = HEAD.pack(MAGIC, count, digest("all"))
        store.values[f"figures/{rank}"] = head + struct.pack(f"<{count}f", *range(count))
    share(store, verdict(0), range(3))
    told = store.values[f"peers/{digest('all'):x}"]

    assert [each[1] for each in read_peers(told).values()] == list(range(min(count, len(FIGURES))))
    longer = HEAD.pack(MAGIC, 100, 0) + struct.pack("<300f", *[1.0] * 300)
    assert list(read_peers(longer)) == list(FIGURES)


@pytest.mark.parametrize(
    "said",
    [b"", b"x", HEAD.pack(MAGIC, -1, 0), HEAD.pack(MAGIC, 2**31 - 1, 0), HEAD.pack(7, 0, 0)],
)
def test_message_that_is_none_says_nothing(said: bytes) -> None:
    """Whoever writes to the store, the join goes on."""
    store = MemoryStore()
    store.values = {"figures/0": said, "figures/1": message({POWER: math.inf}, "all")}
    share(store, verdict(1), range(2))

    assert read_peers(said) == {}
    assert read_peers(store.values[f"peers/{digest('all'):x}"]) == {}


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "power",
        {POWER: "1"},
        {POWER: True},
        {POWER: None},
        {POWER: math.nan},
        {POWER: -math.inf},
        {POWER: 10**400},
        {POWER: 1e300},
        {"mood": 1.0},
        {1: 2},
    ],
)
def test_exporters_answer_may_be_anything(said: object) -> None:
    """The probe is a guest: what it cannot use it leaves out."""
    assert known(said) == {}
    assert known({POWER: 3}) == {POWER: 3.0}


def test_keys_go_with_their_ranks() -> None:
    """Nothing is left in the store at a clean end."""
    world = World(["all"] * 3)
    tell(world, lambda rank: {POWER: 1.0})
    train(world, 2, rounds=40)
    assert f"peers/{digest('all'):x}" in world.store.values
    world.rounds[1].take_back()
    world.store.values["figures/1"] = b"of a rank that was killed"
    world.rounds[0].take_back()
    world.rounds[2].take_back()

    assert world.store.values == {}


def test_verdict_and_peers_arrive_together() -> None:
    """The round in which a rank reads that it is late also tells it how its peers are."""
    world = World(["all"] * 4)
    rng = random.Random(1)
    tell(world, lambda rank: {POWER: rng.random()})
    for number in range(1, 60):
        world.step(
            *[vector(number, sync=41, data=5)] * 3,
            vector(number, sync=1, data=45),
        )
        world.round()
        said = json.dumps(world.rounds[3].verdict and world.rounds[3].verdict["late"])
        assert bool(peers_of(world, 3)) == ('"kind": "persistent"' in said)
    assert peers_of(world, 3)
