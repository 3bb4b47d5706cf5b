"""A breath lets a waiting thread have the interpreter long before Python would."""

import threading
import time

from rank_probe.breath import BREATH_SECONDS, breathe


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
