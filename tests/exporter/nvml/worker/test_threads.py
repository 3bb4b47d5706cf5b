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


class Blocked:
    """Work that lasts until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.begun.set()
        self.go_on.wait(20)
        return threading.get_ident()


def test_quick_work_is_done_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes no time to speak of costs no second thread, nor does what waits for a moment."""
    monkeypatch.setattr(threads_module, "HELD_UP_SECONDS", 20.0)
    threads, blocked = Threads(), Blocked()
    used = {thread for _ in range(20) for thread in ran([threads.submit(threading.get_ident)])}
    first = threads.submit(blocked)
    assert blocked.begun.wait(20)
    second = threads.submit(threading.get_ident)
    blocked.go_on.set()

    assert len(used | ran([first, second])) == 1
    assert threading.get_ident() not in used


def test_work_behind_a_hang_is_done_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang keeps its own thread, and delays the others only for a moment."""
    monkeypatch.setattr(threads_module, "HELD_UP_SECONDS", 0.0)
    threads, hang = Threads(), Blocked()
    hanging = threads.submit(hang)
    try:
        assert hang.begun.wait(20)
        behind = [threads.submit(threading.get_ident) for _ in range(5)]
        threads.relieve()
        others = ran(behind)
        assert not hanging.done()
    finally:
        hang.go_on.set()
    assert ran([hanging]).isdisjoint(others)


def test_failure_reaches_who_waits() -> None:
    """An error of the work is raised where its result is read, and the thread continues."""
    threads = Threads()
    failed = threads.submit(lambda: int("no number"))

    with pytest.raises(ValueError, match="no number"):
        failed.result(20)
    assert threads.submit(lambda: 5).result(20) == 5
