"""Giving way lets a waiting thread have the interpreter long before Python would."""

import threading
import time
from types import SimpleNamespace

import pytest

from rank_probe.guest import yielding
from rank_probe.guest.yielding import TURN_SECONDS, WORK_SECONDS, give_way, has_waited


def test_pause_is_short_and_gives_way() -> None:
    """It takes far less than the 5 ms after which Python makes a thread give way."""
    assert 0 < TURN_SECONDS < 2.5e-3
    turns: list[str] = []
    ready = threading.Event()

    def other() -> None:
        ready.wait()
        turns.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    ready.set()
    deadline = time.monotonic() + 5
    while not turns and time.monotonic() < deadline:
        give_way()
    thread.join()

    assert turns == ["other"]


def test_pause_is_taken_after_some_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a wake-up: a fast machine needs fewer."""
    now, slept = [100.0], list[float]()
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=slept.append)
    monkeypatch.setattr(yielding, "time", clock)
    monkeypatch.setattr(yielding, "_last", SimpleNamespace(at=0.0))
    give_way()
    now[0] += WORK_SECONDS / 2
    give_way()
    assert slept == [TURN_SECONDS]
    now[0] += WORK_SECONDS
    give_way()
    assert slept == [TURN_SECONDS] * 2
    now[0] += 1.0
    has_waited()  # For something else: the others had their turn.
    give_way()
    assert slept == [TURN_SECONDS] * 2
