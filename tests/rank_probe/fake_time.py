"""A clock for tests, and another thread."""

import threading
from collections.abc import Callable


class FakeTime:
    """A clock that only moves when it is moved."""

    def __init__(self) -> None:
        self.nanoseconds = 1_000

    def __call__(self) -> int:
        return self.nanoseconds

    def pass_(self, nanoseconds: int) -> None:
        self.nanoseconds += nanoseconds


def elsewhere(*calls: Callable[[], object]) -> None:
    """Make the *calls* on another thread, and wait for them."""
    thread = threading.Thread(target=lambda: [call() for call in calls])
    thread.start()
    thread.join()
