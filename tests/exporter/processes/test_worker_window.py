"""The time of a worker is divided as its clocks and the looks say."""

import pytest

from exporter.processes.worker_window import LEAST_LOOKS, MOST_LOOKS, WorkerLook, WorkerWindow
from rank_probe.lines.system_calls import CPU_QUEUE, DISK, LOCK, RUNNING, SLEEP, Wait


def shares(*looks: WorkerLook) -> dict[Wait, float]:
    window = WorkerWindow()
    for look in looks:
        window.add(look)
    return {wait: round(share, 3) for wait, share in window.shares().items()}


def looks(*waits: Wait | None, running: float = 0.0, queue: float = 0.0) -> list[WorkerLook]:
    """Return a look a second; None is idle. It runs and queues for these shares of the time."""
    return [
        WorkerLook(at, at * running, at * queue, at * running, wait, is_idle=wait is None)
        for at, wait in enumerate(waits)
    ]


def test_few_looks_say_nothing() -> None:
    """One that has just begun has no shares."""
    assert shares() == {}
    assert shares(*looks(*[Wait(SLEEP)] * (LEAST_LOOKS - 1))) == {}


def test_idle_worker_has_no_share() -> None:
    """It waits for work; a little of anything else is not told."""
    assert shares(*looks(*[None] * 50, Wait(SLEEP))) == {}


def test_clocks_say_how_long_it_ran_and_looks_divide_the_rest() -> None:
    """It was idle at a third of the looks, and asleep at the others."""
    found = shares(*looks(*[Wait(SLEEP), Wait(SLEEP), None] * 6, running=0.3, queue=0.1))

    assert found == {Wait(SLEEP): 0.4, Wait(RUNNING): 0.3, Wait(CPU_QUEUE): 0.1}


def test_mounts_are_told_apart_and_links_are_not() -> None:
    """A mount is the answer; which of its pipes a worker reads is not."""
    waits = [Wait(DISK, "/a (nfs)", "x"), Wait(DISK, "/a (nfs)", "y"), Wait(DISK, "/b (fuse)")] * 4

    assert shares(*looks(*waits)) == {
        Wait(DISK, "/a (nfs)"): 0.667,
        Wait(DISK, "/b (fuse)"): 0.333,
    }


def test_work_of_its_other_threads_is_its_own() -> None:
    """A decoder with threads keeps the main thread waiting for a lock."""
    waiting = [WorkerLook(at, 0.0, 0.0, 0.7 * at, Wait(LOCK)) for at in range(10)]

    assert shares(*waiting) == {Wait(RUNNING): 0.7, Wait(LOCK): 0.3}


def test_old_looks_are_forgotten() -> None:
    """What it does now counts."""
    before, after = [Wait(SLEEP)] * MOST_LOOKS, [Wait(LOCK)] * MOST_LOOKS

    assert shares(*looks(*before, *after)) == {Wait(LOCK): 1.0}


def test_a_clock_that_is_ahead_of_the_time_is_no_more_than_all_of_it() -> None:
    """Shares are at most 1."""
    assert shares(*looks(*[None] * 9, running=1.1)) == {Wait(RUNNING): pytest.approx(1.0)}
