"""Tests of the garbage collector's pauses."""

import gc

from rank_probe.process.garbage import GarbagePauses
from tests.rank_probe.fake_time import FakeTime


class TakesTime:
    """Passes time while it is collected."""

    def __init__(self, now: FakeTime) -> None:
        self.now = now
        self.me = self  # Only the collector frees it.

    def __del__(self) -> None:
        self.now.pass_(2_000_000_000)


def test_a_collection_is_counted_once() -> None:
    """What passes while the collector runs is added up, and nothing else."""
    now = FakeTime()
    pauses = GarbagePauses(now)
    patches = pauses.attach()
    TakesTime(now)
    now.pass_(7_000_000_000)
    gc.collect()
    patches.undo()

    assert pauses.seconds() == 2.0


def test_after_undo_nothing_listens() -> None:
    """The collector's list of callbacks is what it was, and pauses are no longer counted."""
    before = list(gc.callbacks)
    now = FakeTime()
    pauses = GarbagePauses(now)
    pauses.attach().undo()
    TakesTime(now)
    gc.collect()

    assert gc.callbacks == before
    assert pauses.seconds() == 0.0


def test_attaching_within_a_collection_counts_the_next_one() -> None:
    """An end whose beginning nobody saw is not taken for a pause."""
    now = FakeTime()
    pauses = GarbagePauses(now)
    attached = []

    class Attaches:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            attached.append(pauses.attach())
            now.pass_(1_000_000_000)

    Attaches()
    gc.collect()
    attached.pop().undo()

    assert pauses.seconds() == 0.0
