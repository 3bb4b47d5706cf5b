"""A breath lets a waiting thread have the interpreter long before Python would."""

import threading
import time
from types import SimpleNamespace

import pytest

from rank_probe import breath
from rank_probe.breath import BREATH_SECONDS, WORK_SECONDS, breathe


def test_breath_is_short_and_gives_way() -> None:
    """It takes far less than the 5 ms after which Python makes a thread give way."""
    assert 0 < BREATH_SECONDS < 2.5e-3
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
        breathe()
    thread.join()

    assert turns == ["other"]


def test_breath_is_taken_after_some_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a wake-up: a fast machine needs fewer."""
    now, slept = [100.0], list[float]()
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=slept.append)
    monkeypatch.setattr(breath, "time", clock)
    monkeypatch.setattr(breath, "_last", SimpleNamespace(at=0.0))
    breathe()
    now[0] += WORK_SECONDS / 2
    breathe()
    assert slept == [BREATH_SECONDS]
    now[0] += WORK_SECONDS
    breathe()
    assert slept == [BREATH_SECONDS] * 2
