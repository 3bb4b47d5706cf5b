import threading
from concurrent.futures import Future, wait

import pytest

from exporter.nvml.worker import threads as threads_module
from exporter.nvml.worker.threads import Threads


def ran(futures: list[Future[int]]) -> set[int]:
    """Return the threads that did the work of *futures*."""
    done, left = wait(futures, timeout=20)
    assert not left
    return {future.result() for future in done}


def test_quick_work_is_done_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes no time to speak of costs no second thread, however much it is."""
    monkeypatch.setattr(threads_module, "HELD_UP_SECONDS", 20.0)
    threads = Threads()
    used = {thread for _ in range(20) for thread in ran([threads.submit(threading.get_ident)])}

    assert len(used) == 1
    assert threading.get_ident() not in used


def test_work_behind_a_hang_is_done_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang keeps its own thread, and delays the others only for a moment."""
    monkeypatch.setattr(threads_module, "HELD_UP_SECONDS", 0.0)
    threads = Threads()
    begun, mended = threading.Event(), threading.Event()

    def hang() -> int:
        begun.set()
        mended.wait(20)
        return threading.get_ident()

    hanging = threads.submit(hang)
    try:
        assert begun.wait(20)
        behind = [threads.submit(threading.get_ident) for _ in range(5)]
        threads.relieve()
        others = ran(behind)
        assert not hanging.done()
    finally:
        mended.set()
    assert ran([hanging]).isdisjoint(others)


def test_busy_thread_gets_its_time_before_another_joins_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that waits for less than a moment waits for the thread that there is."""
    monkeypatch.setattr(threads_module, "HELD_UP_SECONDS", 20.0)
    threads = Threads()
    begun, go_on = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        go_on.wait(20)
        return threading.get_ident()

    first = threads.submit(work)
    assert begun.wait(20)
    second = threads.submit(threading.get_ident)
    go_on.set()

    assert len(ran([first, second])) == 1


def test_failure_reaches_who_waits() -> None:
    """An error of the work is raised where its result is read, and the thread continues."""
    threads = Threads()
    failed = threads.submit(lambda: int("no number"))

    with pytest.raises(ValueError, match="no number"):
        failed.result(20)
    assert threads.submit(lambda: 5).result(20) == 5
