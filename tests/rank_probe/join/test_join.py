"""The join's rounds over a store in memory, and how it begins and ends."""

import json
import random
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from rank_probe.guest.guard import failures
from rank_probe.join import join
from rank_probe.join.join import Join
from rank_probe.join.result import COLUMNS
from rank_probe.join.ring import digest
from rank_probe.join.rounds import PlaceInJob, Rounds
from rank_probe.join.totals import JoinTotals
from rank_probe.measure import events
from rank_probe.measure.steps import Steps
from rank_probe.measure.timeline import Timeline
from rank_probe.measure.vectors import StepVector, Vectors
from rank_probe.process.identity import Identity
from rank_probe.wire.stages import BACKWARD, DATA, STAGES, SYNC
from tests.exporter.running import wait_until

MS = 1_000_000
GROUP = f"group/{digest('all'):x}"


class MemoryStore:
    """A store in a dictionary; every call raises *error* if there is one."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.error: Exception | None = None

    def _live(self) -> dict[str, bytes]:
        if self.error is not None:
            raise self.error
        return self.values

    def set(self, key: str, value: bytes) -> None:
        self._live()[key] = value

    def check(self, keys: Sequence[str]) -> bool:
        return self._live().keys() >= set(keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self._live()[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        self._live().update(zip(keys, values, strict=True))

    def delete_key(self, key: str) -> bool:
        return self._live().pop(key, None) is not None


def identity(rank: int, group: str = "all") -> Identity:
    return Identity("llama", group, rank, 4, str(rank), "0", attempt=0)


def vector(sync: int = 0, **milliseconds: int) -> StepVector:
    """Return a step without its number."""
    spent = [MS * milliseconds.get(stage, 0) for stage in STAGES]
    spent[SYNC] = MS * sync
    return StepVector(0, 0, tuple(spent))


HEALTHY, LATE = vector(sync=41, data=5, backward=10), vector(sync=1, data=45, backward=10)


class World:
    """Ranks that take their rounds in turn, in one thread; each rank may have its own vector."""

    def __init__(self, groups: Sequence[str], store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.kept = [Vectors(lambda: None) for _ in groups]
        self.rounds = [
            Rounds(
                self.store,
                PlaceInJob(rank, len(groups)),
                self.kept[rank],
                lambda rank=rank, group=group: identity(rank, group),  # type: ignore[misc]
                threading.Event(),
            )
            for rank, group in enumerate(groups)
        ]
        self.now = 100.0

    def step(self, number: int, late: Collection[int] = ()) -> None:
        """Do step *number*, in which these ranks are *late*."""
        for rank, kept in enumerate(self.kept):
            kept.waiting.append((LATE if rank in late else HEALTHY)._replace(step=number))

    def round(self, absent: Collection[int] = ()) -> None:
        """Let all ranks but these take their rounds."""
        self.now += PlaceInJob(0, len(self.rounds)).period_seconds
        for rank, each in enumerate(self.rounds):
            if rank not in absent:
                each.run(self.now)

    def train(
        self, steps: Iterable[int], late: Collection[int] = (), absent: Collection[int] = ()
    ) -> None:
        """Take a round after each of *steps*."""
        for number in steps:
            self.step(number, late)
            self.round(absent)


def test_every_rank_reads_what_it_caused_and_the_same_verdict() -> None:
    """Who is late, where and at what cost is judged once, by rank 0, and told to all."""
    world = World(["pp0", "pp0", "pp1", "pp1"])
    world.train(range(1, 60), late=[3])
    verdicts = [each.verdict for each in world.rounds]

    assert verdicts[0] == verdicts[1] == verdicts[2] == verdicts[3]
    assert verdicts[3] is not None
    (found,) = verdicts[3]["late"]
    assert (found["rank"], found["peer_group"], found["stage"]) == (3, "pp1", "data")
    assert sum(found["gpus"].values()) == pytest.approx(3 * 40 / 56, rel=0.01)
    assert world.rounds[0].verdict_at == world.now
    world.round()
    world.round()
    results = [each.result for each in world.rounds if each.result]
    assert [result.steps for result in results] == [59] * 4
    assert results[3].paced_steps[DATA] == 59
    assert results[3].wait_caused_seconds[DATA] == pytest.approx(59 * 3 * 0.04)
    assert results[3].wait_caused_seconds[BACKWARD] == 0
    assert [sum(each.wait_caused_seconds) for each in results[:3]] == [0, 0, 0]
    assert [each.coverage.ratio for each in world.rounds] == [1.0] * 4


def test_all_ranks_sample_as_rank_0_does() -> None:
    """Ranks that have settled on different samples of a loop agree on one, and join it all."""
    world = World(["all"] * 2)
    world.rounds[1]._ring.stride = 2
    for number in range(70):
        for each in range(1, 29):
            world.step(28 * number + each)
        world.round()

    assert [each._ring.stride for each in world.rounds] == [1, 1]
    assert [each.coverage.ratio for each in world.rounds] == [1.0] * 2


def test_store_does_not_grow_and_is_empty_at_a_clean_end() -> None:
    """Three keys a rank, two a group with a late rank, and the verdict."""
    world = World(["all"] * 3)
    sizes = set()
    for number in range(1, 60):
        world.train([number], late=[2])
        sizes.add(sum(map(len, world.store.values.values())))
    peers = f"peers/{digest('all'):x}"
    assert set(world.store.values) == {
        *(f"{what}/{rank}" for what in ("steps", "result", "figures") for rank in range(3)),
        *("verdict", GROUP, peers),
    }
    assert max(sizes) < 3 * 2_000
    world.rounds[2].take_back()
    world.store.values["result/2"] = b"written by rank 0 in the same moment"
    world.store.values["figures/2"] = b"of a rank that was killed"
    world.rounds[0].take_back()
    assert set(world.store.values) == {"steps/1", "result/1", "figures/1"}
    world.rounds[1].take_back()
    assert world.store.values == {}


def test_rank_that_never_steps_is_left_out_until_it_does() -> None:
    """An evaluator, or a rank that loads for long, costs the join its first rounds only."""
    world = World(["all"] * 3)
    world.train(range(1, 10), absent=[1])
    assert [world.rounds[rank].result for rank in (0, 2)] == [None, None]
    world.train(range(10, 40), absent=[1])
    verdict, result = world.rounds[2].verdict, world.rounds[2].result
    assert verdict is not None
    assert (verdict["absent"], verdict["ranks"], verdict["reason"]) == (1, {"all": 2}, None)
    assert world.rounds[2].coverage.ratio == 1.0
    assert result is not None
    assert result.steps > 25
    assert world.rounds[1].result is None
    world.train(range(40, 80))
    verdict = world.rounds[0].verdict

    assert verdict is not None
    assert (verdict["absent"], verdict["ranks"]) == (0, {"all": 3})


def test_rank_that_stops_posting_is_not_judged_by_its_past() -> None:
    """What a stale rank has posted is merged once, and its peers' later steps are not."""
    world = World(["all"] * 2)
    world.train(range(1, 11))
    world.train(range(11, 30), absent=[1])

    assert world.rounds[0].result is not None
    assert world.rounds[0].result.steps == 10
    assert world.rounds[0].coverage.ratio is not None
    assert world.rounds[0].coverage.ratio < 0.5


@pytest.mark.parametrize(
    ("ranks", "seconds"), [(2, 1), (256, 1), (257, 2), (4_096, 5), (4_097, 10), (100_000, 10)]
)
def test_large_world_takes_turns_less_often(ranks: int, seconds: float) -> None:
    """One store serves 256 ranks every second, and any number every ten."""
    assert PlaceInJob(0, ranks).period_seconds == seconds


class QuickPlace(PlaceInJob):
    """A place whose rounds are short enough for a test."""

    period_seconds = 0.01


@contextmanager
def joining(
    connect: Callable[[], MemoryStore],
    on_news: Callable[[], None] = lambda: None,
    **environment: str,
) -> Iterator[Join]:
    """Run a join of a world of two, as rank 1, and end it."""
    joined = Join(environment, on_news)
    joined.begin(connect, QuickPlace(1, 2), Steps(list), lambda: identity(1))
    try:
        yield joined
    finally:
        joined.stop()


def thread_of(joined: Join) -> threading.Thread:
    assert joined._thread is not None
    return joined._thread


def test_news_are_told_at_once() -> None:
    """When the verdict names somebody else, whoever pushes hears of it."""
    store, news = MemoryStore(), []
    with joining(lambda: store, lambda: news.append(1)) as joined:
        wait_until(lambda: "steps/1" in store.values)
        told = struct.pack(f"{COLUMNS}d", *[1.0] * COLUMNS)
        for late in ([], [{"rank": 0, "kind": "persistent"}]):
            assert news == []
            store.values |= {"result/1": told, "verdict": json.dumps({"late": late}).encode()}
            wait_until(lambda late=late: joined.snapshot_fields([])["verdict"] == {"late": late})  # type: ignore[misc]
        wait_until(lambda: news == [1])


def test_stages_have_their_counters_from_the_begin_on() -> None:
    """Each stage that occurred starts at 0, or its first increase would not be seen.

    The pause between two rounds is not drawn from the generator that training draws from.
    """
    store, before = MemoryStore(), random.getstate()
    with joining(lambda: store) as joined:
        wait_until(lambda: "steps/1" in store.values)
        fields = joined.snapshot_fields(["data", "backward", "sync"])

    assert set(store.values) <= {GROUP}
    assert random.getstate() == before
    assert fields == {
        "paced_steps": {"data": 0, "backward": 0},
        "wait_caused_seconds": {"data": 0.0, "backward": 0.0},
        "joined_seconds": 0.0,
        "join_coverage": None,
        "verdict": None,
        "verdict_age_seconds": None,
        "peer_figures": {},
    }


def test_keys_of_a_killed_attempt_are_not_read_as_ours() -> None:
    """A rank that starts anew on the same store forgets what it was told before."""
    store = MemoryStore()
    told = struct.pack(f"{COLUMNS}d", *[99.0] * COLUMNS)
    store.values = {"steps/1": b"old", "result/1": told}
    with joining(lambda: store) as joined:
        wait_until(lambda: store.values.get("steps/1", b"old") != b"old")
        wait_until(lambda: joined.snapshot_fields([])["joined_seconds"] == 0)
        assert "result/1" not in store.values


@pytest.mark.parametrize(("error", "faults"), [(RuntimeError("Broken"), 0), (KeyError("key"), 1)])
def test_store_that_fails_ends_the_join_quietly(error: Exception, faults: int) -> None:
    """The counters stand and the coverage is 0; only what is no store's error is our failure."""
    store, before = MemoryStore(), failures.count
    with joining(lambda: store) as joined:
        wait_until(lambda: "steps/1" in store.values)
        store.error = error
        thread_of(joined).join(5)
        fields = joined.snapshot_fields(["data"])

    assert not thread_of(joined).is_alive()
    assert (fields["join_coverage"], fields["joined_seconds"]) == (0.0, 0.0)
    assert failures.count == before + faults


def test_store_that_cannot_be_reached_and_a_join_that_is_off_leave_nothing() -> None:
    """Where it never began there is no field of it; with RANK_PROBE_JOIN=0 no thread either."""

    def connect() -> MemoryStore:
        raise RuntimeError("Connection refused")

    with joining(connect) as joined:
        thread_of(joined).join(5)
        assert joined.snapshot_fields(["data"]) == {}
    with joining(MemoryStore, RANK_PROBE_JOIN="0") as joined:
        assert joined._thread is None
        assert joined.snapshot_fields(["data"]) == {}


def test_rank_whose_steps_are_no_longer_counted_gives_up() -> None:
    """Its later steps have other numbers than its peers'; so it takes its keys back for good."""
    store = MemoryStore()
    with joining(lambda: store) as joined:
        wait_until(lambda: "steps/1" in store.values)
        joined.give_up()
        thread_of(joined).join(5)
        assert set(store.values) <= {GROUP}
        assert joined.snapshot_fields([])["join_coverage"] == 0
        joined.begin(lambda: store, QuickPlace(1, 2), Steps(list), lambda: identity(1))
    assert set(store.values) <= {GROUP}


def test_store_that_never_answers_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots go on, with a coverage of 0 after a minute, and the end waits a little only."""
    monkeypatch.setattr(join, "STOP_SECONDS", 0.01)
    stuck, release, seconds = threading.Event(), threading.Event(), [0.0]

    class Stuck(MemoryStore):
        def set(self, key: str, value: bytes) -> None:
            stuck.set()
            release.wait(10)

    joined = Join({}, lambda: None, now=lambda: seconds[0])
    joined.begin(Stuck, QuickPlace(1, 2), Steps(list), lambda: identity(1))
    assert stuck.wait(5)
    assert joined.snapshot_fields([])["join_coverage"] is None
    seconds[0] = join.STUCK_SECONDS + 1
    assert joined.snapshot_fields([])["join_coverage"] == 0
    joined.stop()
    assert thread_of(joined).is_alive()
    release.set()
    thread_of(joined).join(5)


def test_arithmetic_that_fails_is_a_fault_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch says RuntimeError of a shape as of a store, but only the store's is nobody's fault."""
    before, timeline = failures.count, Timeline(automatic=False)

    def wrong(*_: object) -> None:
        raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

    monkeypatch.setattr(JoinTotals, "add", wrong)
    joined = Join({}, lambda: None)
    joined.begin(MemoryStore, QuickPlace(0, 1), timeline.steps, lambda: identity(0))
    wait_until(lambda: bool(timeline.steps._takers))
    for _ in range(3):
        timeline.tape.note(events.STEP)
    thread_of(joined).join(5)

    assert not thread_of(joined).is_alive()
    assert joined.snapshot_fields([])["join_coverage"] == 0
    assert failures.count == before + 1
