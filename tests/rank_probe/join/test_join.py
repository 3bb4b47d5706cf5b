"""How the join begins, is rehearsed and ends, over a store in memory, and what it tells."""

import functools
import gc
import json
import random
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rank_probe.guest.guard import failures
from rank_probe.join import join
from rank_probe.join.join import MOST_FAILED, GroupToJoin, Join
from rank_probe.join.rehearsal import rehearse
from rank_probe.join.result import COLUMNS
from rank_probe.join.store import PlaceInJob
from rank_probe.judge.judge import Judge
from rank_probe.judge.verdict import WARMING_UP, Verdict
from rank_probe.measure import events
from rank_probe.measure.steps import Steps
from rank_probe.measure.timeline import Timeline
from tests.exporter.running import wait_until
from tests.rank_probe.join.memory_world import GROUP, LIFE, MemoryStore, identity, living


class QuickPlace(PlaceInJob):
    """A place whose rounds are short enough for a test."""

    period_seconds = 0.01


def group(connect: Callable[[], MemoryStore]) -> GroupToJoin:
    """Return a world of two, in which this is rank 1."""
    return GroupToJoin(connect, QuickPlace(1, 2), Steps(bytes), lambda: identity(1))


@contextmanager
def joining(
    connect: Callable[[], MemoryStore],
    on_news: Callable[[], None] = lambda: None,
    **environment: str,
) -> Iterator[Join]:
    """Run a join of a world of two, as rank 1, and end it."""
    joined = Join(environment, on_news)
    joined.begin(group(connect))
    try:
        yield joined
    finally:
        joined.stop()


@contextmanager
def joined_on(store: MemoryStore, on_news: Callable[[], None] = lambda: None) -> Iterator[Join]:
    """Run a join that has offered its first steps on *store*."""
    with joining(lambda: store, on_news) as joined:
        wait_until(lambda: "steps/1" in store.of_life())
        yield joined


def thread_of(joined: Join) -> threading.Thread:
    current = joined._state.current
    assert current is not None
    assert current.thread is not None
    return current.thread


def test_news_are_told_at_once() -> None:
    """When the verdict names somebody else, whoever pushes hears of it."""
    store, news = living(), []
    with joined_on(store, lambda: news.append(1)) as joined:
        told = struct.pack(f"{COLUMNS}d", *[1.0] * COLUMNS)
        for late in ([], [{"rank": 0, "kind": "persistent"}]):
            assert news == []
            said = {"reason": None, "late": late}
            verdict = json.dumps(said).encode()
            store.values |= {f"{LIFE}/result/1": told, f"{LIFE}/verdict": verdict}
            wait_until(lambda said=said: joined.snapshot_fields([])["verdict"] == said)  # type: ignore[misc]
        wait_until(lambda: news == [1])


def test_stages_have_their_counters_from_the_begin_on() -> None:
    """Each stage that occurred starts at 0, or its first increase would not be seen.

    The pause between two rounds is not drawn from the generator that training draws from.
    """
    store, before = living(), random.getstate()
    with joined_on(store) as joined:
        fields = joined.snapshot_fields(["data", "backward", "sync"])

    assert set(store.of_life()) <= {GROUP}
    assert random.getstate() == before
    assert fields == {
        "wait_caused_seconds": {"data": 0.0, "backward": 0.0},
        "joined_seconds": 0.0,
        "join_coverage": None,
        "verdict": None,
        "verdict_age_seconds": None,
        "peer_figures": {},
    }


@pytest.mark.parametrize(
    ("error", "faults"),
    [(RuntimeError("Broken"), 0), (KeyError("key"), MOST_FAILED + 1)],  # It cannot take back, too.
)
def test_store_that_fails_ends_the_join_quietly(error: Exception, faults: int) -> None:
    """The counters stand and the coverage is 0; only what is no store's error is our failure."""
    store, before = living(), failures.count
    with joined_on(store) as joined:
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
        assert joined._state.current is None
        assert joined.snapshot_fields(["data"]) == {}


def test_rank_whose_steps_are_no_longer_counted_gives_up() -> None:
    """Its later steps have other numbers than its peers'; so it takes its keys back for good."""
    store = living()
    with joined_on(store) as joined:
        joined.give_up()
        thread_of(joined).join(5)
        assert set(store.of_life()) <= {GROUP}
        assert joined.snapshot_fields([])["join_coverage"] == 0
        joined.begin(group(lambda: store))
    assert set(store.of_life()) <= {GROUP}


def test_store_that_never_answers_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots go on, with a coverage of 0 after a minute, and the end waits a little only."""
    monkeypatch.setattr(join, "STOP_SECONDS", 0.01)
    stuck, release, seconds = threading.Event(), threading.Event(), [0.0]

    class Stuck(MemoryStore):
        def set(self, key: str, value: bytes) -> None:
            stuck.set()
            release.wait(10)

    store = Stuck()
    store.values = living().values
    joined = Join({}, lambda: None, now=lambda: seconds[0])
    joined.begin(group(lambda: store))
    assert stuck.wait(5)
    assert joined.snapshot_fields([])["join_coverage"] is None
    seconds[0] = join.STUCK_SECONDS + 1
    assert joined.snapshot_fields([])["join_coverage"] == 0
    joined.stop()
    assert thread_of(joined).is_alive()
    release.set()
    thread_of(joined).join(5)


@contextmanager
def stepping(joined: Join) -> Iterator[Callable[[], object]]:
    """Run *joined* as the only rank of a world, and end it; what it yields does a step."""
    timeline = Timeline(automatic=False)
    joined.begin(GroupToJoin(MemoryStore, QuickPlace(0, 1), timeline.steps, lambda: identity(0)))
    wait_until(lambda: bool(timeline.steps._takers))
    try:
        yield lambda: timeline.tape.note(events.STEP)
    finally:
        joined.stop()


def test_round_that_fails_costs_the_judge_its_past_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted, and another judge begins with the next step; counters go on."""
    before, judge, judges = failures.count, Judge.judge, []

    def fails_once(self: Judge, *args: Any, **kwargs: Any) -> Verdict:
        judges.append(self)
        if len(judges) == 2:
            raise ZeroDivisionError("float division by zero")
        return judge(self, *args, **kwargs)

    monkeypatch.setattr(Judge, "judge", fails_once)
    joined = Join({}, lambda: None)
    with stepping(joined) as step:
        for number in (1, 2, 3, 4):
            step()
            step()
            wait_until(lambda number=number: len(judges) >= number)  # type: ignore[misc]
        wait_until(lambda: joined.snapshot_fields([])["joined_seconds"] > 0)
        verdict = joined.verdict

    assert judges[0] is judges[1] is not judges[2] is judges[3]
    assert verdict is not None
    assert verdict["reason"] == WARMING_UP
    assert failures.count == before + 1


def test_rounds_that_always_fail_are_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log reports it; a RuntimeError about a shape counts, unlike one from the store.

    A round in which the judge only warms up does not reset the count.
    """
    before, judge = failures.count, Judge.judge

    def wrong(self: Judge, *args: Any, **kwargs: Any) -> Verdict:
        said = judge(self, *args, **kwargs)
        if said.reason == WARMING_UP:
            return said
        raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

    monkeypatch.setattr(Judge, "judge", wrong)
    joined = Join({}, lambda: None)
    with stepping(joined) as step:

        def is_over() -> bool:
            step()
            return not thread_of(joined).is_alive()

        wait_until(is_over)
        assert joined.snapshot_fields([])["join_coverage"] == 0
    assert failures.count == before + MOST_FAILED
    assert f"stops comparing ranks: {MOST_FAILED} rounds failed" in caplog.text


def test_counters_go_on_in_the_next_group_and_the_verdict_does_not() -> None:
    """The last verdict stays until there is another group; a store that failed costs its own."""
    told = struct.pack(f"{COLUMNS}d", *[2.0] * COLUMNS)
    stores = [living(), living(), living()]
    for store in stores:
        store.values[f"{LIFE}/verdict"] = b'{"reason":null,"late":[]}'

    def joined_seconds() -> float:
        return float(joined.snapshot_fields([])["joined_seconds"])

    with joining(lambda: stores[0]) as joined:
        for number, store in enumerate(stores):
            if number:
                joined.group_is_new()
                assert joined.verdict is None
                assert joined_seconds() == 2 * number
                joined.begin(group(functools.partial(stores.__getitem__, number)))
            wait_until(lambda store=store: "steps/1" in store.of_life())  # type: ignore[misc]
            store.values[f"{LIFE}/result/1"] = told
            wait_until(lambda number=number: joined_seconds() == 2 * (number + 1))  # type: ignore[misc]
            assert joined.verdict == {"reason": None, "late": []}
            if number == 1:
                store.error = RuntimeError("Broken")
                thread_of(joined).join(5)
                assert joined.snapshot_fields([])["join_coverage"] == 0
            else:
                joined.group_is_gone()
                thread_of(joined).join(5)
                assert joined.verdict == {"reason": None, "late": []}
            assert joined_seconds() == 2 * (number + 1)


def test_all_of_a_round_is_rehearsed_and_leaves_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the windows, in a thread that is then gone: its setting of OpenMP must not stay.

    Python would collect garbage at the next allocation, perhaps while training waits.
    """
    judged: list[tuple[Verdict, str]] = []
    judge = Judge.judge

    def watched(self: Judge, *arguments: Any, **named: Any) -> Verdict:
        verdict = judge(self, *arguments, **named)
        judged[:] = [(verdict, threading.current_thread().name)]
        return verdict

    monkeypatch.setattr(Judge, "judge", watched)
    before = threading.active_count()
    rehearse.__wrapped__().join()  # Imports leave some.
    gc.collect()
    gc.disable()
    try:
        rehearse.__wrapped__().join()
        assert gc.collect() == 0
    finally:
        gc.enable()

    ((verdict, name),) = judged
    assert verdict.reason != WARMING_UP
    assert verdict.ranks == {"0": 3}
    assert name == "rank_probe_join"
    assert (threading.active_count(), failures.count) == (before, 0)
