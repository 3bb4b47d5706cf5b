"""What ranks learn of each other: a late rank its peers' figures, rank 0 the facts of all, once."""

import json
import math
import struct
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rank_probe.join.figures import HEAD, MAGIC, OwnFigures, known_figures, message, read_peers
from rank_probe.join.peers import PATIENT_READINGS, PeerFigures
from rank_probe.join.ring import digest
from rank_probe.join.store import BATCH
from rank_probe.judge.verdict import Late, Verdict, from_json
from rank_probe.process.facts import LONGEST_TEXT, number, read_facts, read_whereabouts
from rank_probe.wire.figures import FIGURES
from tests.rank_probe.join.memory_world import MemoryStore, World

CLOCK = "sm_clock_hertz"
POWER = "gpu_power_watts"
PEERS = f"peers/{digest('all'):x}"


def verdict(*late: int, kind: str = "persistent") -> Verdict:
    named = [Late(rank, "all", "data", kind, 1.0, {}, 1.0, 1, 1.0) for rank in late]
    return Verdict(1, {"all": 4}, late=tuple(named))


def posted(*power: float) -> MemoryStore:
    """Return a store in which each rank has posted its *power*."""
    store = MemoryStore()
    for rank, watts in enumerate(power):
        store.values[f"figures/{rank}"] = message({POWER: watts}, "all")
    return store


def told(store: MemoryStore, said: Verdict, ranks: Sequence[int]) -> dict[str, list[float]]:
    """Return what the ranks of the verdict are told of their peers."""
    PeerFigures(store, threading.Event(), 0.0).share(said, ranks, 0.0)
    return read_peers(store.values.get(PEERS, b""))


def test_late_rank_reads_its_peers_in_the_round_in_which_it_reads_that_it_is_late() -> None:
    """Thirds and median of the ranks of its group that are not late; nobody else is told any."""
    world = World(["pp0"] * 3 + ["pp1"] * 5)
    for rank, each in enumerate(world.rounds):
        each.figures.tell({CLOCK: 5.0} if rank == 6 else {CLOCK: 1e9 + rank, POWER: 100.0})
    for step in range(1, 31):
        world.train([step], late=[6])
        said = json.dumps(world.rounds[6].verdict and world.rounds[6].verdict["late"])
        assert bool(world.rounds[6].figures.peers) == ('"kind": "persistent"' in said)
    peers = [each.figures.peers for each in world.rounds]

    assert peers[6].keys() == {CLOCK, POWER}
    assert peers[6][CLOCK] == pytest.approx([1e9 + 4, 1e9 + 4.5, 1e9 + 5], rel=1e-5)
    assert peers[6][POWER] == [100.0] * 3
    assert peers[:6] + peers[7:] == [{}] * 7
    assert f"peers/{digest('pp0'):x}" not in world.store.of_life()


@pytest.mark.parametrize(
    ("power", "late", "thirds"),
    [
        ([99, 1, 2, 3, 4], [0], [2, 2.5, 3]),
        ([5, math.nan, 7], [0], [7, 7, 7]),
        ([0, 3], [0, 1], [1, 1.5, 2]),
        ([1, math.inf], [0], None),
    ],
    ids=["thirds", "unknown is left out", "late ranks where nobody else is left", "infinite"],
)
def test_peers_are_those_that_are_not_late(
    power: list[float], late: list[int], thirds: list[float] | None
) -> None:
    """A third of the way from the smallest to the largest, half, and two thirds."""
    found = told(posted(*power), verdict(*late), range(len(power)))

    assert found == ({} if thirds is None else {POWER: pytest.approx(thirds)})


def test_rank_that_is_late_no_longer_forgets_its_peers() -> None:
    """What its peers do explains nothing then."""
    store = MemoryStore()
    own = OwnFigures(store, 3)
    store.values[PEERS] = HEAD.pack(MAGIC, 1, 0) + struct.pack("<3f", 1, 2, 3)
    late = {"late": [{"rank": 3, "kind": "persistent", "stage": "data"}]}
    healthy: dict[str, list[object]] = {"late": []}
    for no_longer in (healthy, None):
        own.read("all", late)
        assert own.peers == {FIGURES[0]: [1.0, 2.0, 3.0]}
        own.read("all", no_longer)
        assert own.peers == {}


def test_rank_0_reads_every_ten_seconds_and_at_once_for_a_new_rank() -> None:
    """One lateness of many ranks does not make it read each round, nor one that is mild at all."""
    store = posted(1, 1, 1, 1)
    peers = PeerFigures(store, threading.Event(), 0.0)
    peers.share(verdict(1, kind="mild"), range(4), 0.0)
    assert store.calls == 0
    readings = []
    for now, late in enumerate([[1]] * 12 + [[1, 2]] + [[1]] * 5 + [[]] * 3 + [[2]]):
        before = store.calls
        peers.share(verdict(*late), range(4), float(now))
        if store.calls > before:
            readings.append(now)

    assert readings == [0, 9, 12, 21]


def test_ranks_that_have_posted_none_are_not_asked_one_by_one() -> None:
    """A rank of another release costs a few calls, once a minute; without any there is no key."""
    ranks = 4 * BATCH
    store = posted(*[1.0] * ranks)
    del store.values["figures/700"]
    peers = PeerFigures(store, threading.Event(), 0.0)
    counts = []
    for reading in range(PATIENT_READINGS + 1):
        before = store.calls
        peers.share(verdict(3), range(ranks), 10.0 * reading)
        counts.append(store.calls - before)

    assert counts[0] == counts[PATIENT_READINGS]
    assert counts[0] < 40
    assert counts[1:PATIENT_READINGS] == [2 * 4] * (PATIENT_READINGS - 1)
    none = posted()
    told(none, verdict(3), range(8))
    assert none.values == {}


def test_rank_posts_an_empty_message_first_and_takes_back_what_is_told_no_longer() -> None:
    """So rank 0 finds a key of every rank, and an exporter that is gone does not speak for it."""
    store = MemoryStore()
    own = OwnFigures(store, 3)
    empty, full = message({}, "all"), message({POWER: 1.0}, "all")
    for second in range(100):
        own.post("all", float(second))
    assert store.written == ["figures/3"]
    assert len(empty) < 300
    looks = [(100.0, True, full), (160.0, False, full), (161.0, False, empty), (162.0, True, full)]
    for now, is_told, expected in looks:
        if is_told:
            own.tell({POWER: 1.0})
        own.post("all", now)
        assert store.values["figures/3"] == expected


@pytest.mark.parametrize("more", [-3, 5])
def test_message_of_another_release_is_read(more: int) -> None:
    """Its list of figures is shorter or longer; what both know counts."""
    count = len(FIGURES) + more
    store = MemoryStore()
    for rank in range(3):
        head = HEAD.pack(MAGIC, count, digest("all"))
        store.values[f"figures/{rank}"] = head + struct.pack(f"<{count}f", *range(count))
    found = told(store, verdict(0), range(3))

    assert [each[1] for each in found.values()] == list(range(min(count, len(FIGURES))))
    longer = HEAD.pack(MAGIC, 100, 0) + struct.pack("<300f", *[1.0] * 300)
    assert list(read_peers(longer)) == list(FIGURES)


@pytest.mark.parametrize(
    "said",
    [b"", b"x", HEAD.pack(MAGIC, -1, 0), HEAD.pack(MAGIC, 2**31 - 1, 0), HEAD.pack(7, 0, 0)],
)
def test_message_that_is_none_says_nothing(said: bytes) -> None:
    """Whoever writes to the store, the join goes on."""
    store = posted(1, 2)
    store.values["figures/0"] = said

    assert read_peers(said) == {}
    assert told(store, verdict(1), range(2)) == {POWER: [2.0] * 3}


@pytest.mark.parametrize(
    "said",
    [
        *(None, [], "power", {"mood": 1.0}, {1: 2}),
        *({POWER: each} for each in ("1", True, None, math.nan, -math.inf, 10**400, 1e300)),
    ],
)
def test_exporters_answer_may_be_anything(said: object) -> None:
    """The probe is a guest: what it cannot use it leaves out."""
    assert known_figures(said) == {}
    assert known_figures({POWER: 3}) == {POWER: 3.0}


def test_ranks_that_are_late_together_are_told_with_their_rack() -> None:
    """The first verdict that names the late ranks gives all ranks their common rack."""
    facts = [{"node": f"n{rank}", "rack": f"r{rank // 2}"} for rank in range(4)]
    world = World(["all"] * 4, facts=facts)
    world.train(range(1, 30))
    world.train(range(30, 60), late=[2, 3])
    (said,) = world.verdict(1)["together"]

    assert said.pop("since_seconds") > 10
    assert said == {"stage": "data", "ranks": 2, "spans": [[2, 3]], "in_common": "rack r1"}


# ---- Where ranks are -----------------------------------------------------------------------------


def test_every_rank_reads_where_a_late_one_is_and_why() -> None:
    """A verdict has what the late rank's exporter reports; until then, only the node's name."""
    at: list[dict[str, Any]] = [{} for _ in range(4)]
    facts = [{"node": f"n{rank}", "at": each} for rank, each in enumerate(at)]
    world = World(["all"] * 4, facts=facts)
    world.train(range(1, 30), late=[3])
    assert [each["at"] for each in world.verdict(1)["late"]] == [{"node": "n3"}]
    told = {"node": "gpu-7", "page": "http://gpu-7:9917/", "cause": "gc", "sentence": "it collects"}
    at[3] |= told | {"share": 0.9, "detail": "", "figure": "gc_ratio", "value": None}
    world.train(range(30, 32), late=[3])

    for rank in range(4):
        assert [each["at"] for each in world.verdict(rank)["late"]] == [told | {"share": "0.9"}]
        assert from_json(world.verdict(rank)).late[0].at["cause"] == "gc"


def test_every_rank_reads_for_whom_a_job_waits_that_stands_still() -> None:
    """Of all nodes' ranks, while it stands; the verdict before is told with it, and gets no newer.

    A rank that is frozen says nothing new: it is silent after ten seconds.
    """
    at: list[dict[str, Any]] = [{"node": f"n{rank // 2}"} for rank in range(4)]
    world = World(["all"] * 4, facts=[{"at": each} for each in at])
    world.train(range(1, 30))
    world.round()
    judged_at = world.now

    def stand(seconds: int, frozen: Sequence[int] = (), **of_last: Any) -> Any:
        for second in range(10, 10 + seconds):
            for rank in {0, 1, 2, 3} - {*frozen}:
                at[rank] |= {"stage": "sync", "seconds": float(second), "steps": 29}
                at[rank] |= of_last if rank == 3 else {}
            world.round(frozen)
        suspects = [world.verdict(rank)["suspect"] for rank in range(3)]
        assert suspects[1:] == suspects[:1] * 2
        return suspects[0]

    assert stand(3) == {}
    told = stand(3, stage="data", steps=28, line="load (train.py:41)", state="socket")
    assert told == {
        **{"rank": "3", "node": "n1", "stage": "data", "seconds": "11.0", "steps": "28"},
        **{"line": "load (train.py:41)", "state": "socket"},
    }
    assert world.rounds[1].verdict_at == judged_at

    assert stand(3, stage="sync", line="eval (train.py:90)") == {}
    for each in at[:3]:
        each["line"] = "step (train.py:41)"
    told = stand(3)
    assert (told["rank"], told["line"]) == ("3", "eval (train.py:90)")

    told = stand(13, frozen=[3])
    assert (told["rank"], "stage" in told) == ("3", False)
    for each in at:
        del each["stage"]
    world.train([30])
    world.round()
    assert world.verdict(1)["suspect"] == {}
    assert world.rounds[1].verdict_at == world.now


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (b'{"node":"n1"}', {"node": "n1"}),
        (
            b'{"node":"n1","at":{"node":"gpu-7","seconds":1e999}}',
            {"node": "gpu-7", "seconds": "inf"},
        ),
        (b'{"at":["x"]}', {}),
        (b'{"at":{"mood":"bad","page":"a\\u0000b"}}', {"page": "a?b"}),
        (json.dumps({"at": {"sentence": "x" * 999}}).encode(), {"sentence": "x" * LONGEST_TEXT}),
        (b"[" * 9_999, {}),
        (b'{"at":{"node":"' + b"x" * 20_000 + b'"}}', {}),
    ],
)
def test_whereabouts_of_another_rank_are_cut_to_size(said: bytes, known: dict[str, str]) -> None:
    """Text that can be printed, under known names; what is no number counts as 0."""
    assert read_whereabouts(said) == known
    assert "at" not in read_facts(said)
    assert [number(each) for each in ("inf", "nan", "-1", "", "9" * 99, "1.5")] == [0.0] * 5 + [1.5]
