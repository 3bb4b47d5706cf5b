"""Threads for work that may never return: a single one, as long as that is enough."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

# A thread that has been on one piece of work for longer is held up in a call that blocks or hangs.
HELD_UP_SECONDS: Final = 0.05

Work = tuple[Future[Any], Callable[[], Any]]


class Threads:
    """Runs work in the order in which it is submitted, in as few threads as can keep up.

    A separate thread for each piece would take longer than most of the work itself. So another
    thread is added only when work waits and all existing threads are held up. Threads end with the
    process, because nothing else ends one that hangs in the driver. Only one thread submits.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Work] = SimpleQueue()
        # Since when each thread has been on its current work, None if it has none.
        self._busy_since: dict[int, float | None] = {}

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run *work* in a thread and return its future result."""
        future: Future[T] = Future()
        self._queue.put((future, work))
        self.relieve()
        return future

    def relieve(self) -> None:
        """Start a thread if work waits and no thread is going to take it soon."""
        soon = time.monotonic() - HELD_UP_SECONDS
        held_up = (since is not None and since < soon for since in self._busy_since.values())
        if not self._queue.empty() and all(held_up):
            number = len(self._busy_since)
            self._busy_since[number] = None
            threading.Thread(
                target=self._serve, args=[number], name=f"nvml-{number}", daemon=True
            ).start()

    def _serve(self, number: int) -> None:
        while True:
            future, work = self._queue.get()
            self._busy_since[number] = time.monotonic()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - as in any executor: the waiter gets it
                future.set_exception(error)
            self._busy_since[number] = None
