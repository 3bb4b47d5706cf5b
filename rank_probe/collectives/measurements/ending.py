"""Ends a rank of the measurement that cannot go on: one sentence for all ranks, never a hang."""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

# The exit status.
CANNOT_MEASURE: Final = 2
POLL_SECONDS: Final = 0.2
# Who claims the sentence asks the store, which may be what is lost.
CLAIM_SECONDS: Final = 2.0
CLAIM: Final = "ending"


class CannotMeasure(Exception):
    """Nothing could be measured; one sentence on what is wrong and what to do."""


class Watchdog:
    """A thread that ends the process when a step takes longer than *patience_seconds*.

    It also does so on SIGTERM and SIGINT: Python's own handlers would wait until a blocked
    collective returns. *claim* returns whether this rank is the first of all that has to say why.
    """

    def __init__(self, rank: int, patience_seconds: float) -> None:
        self._rank = rank
        self._patience = patience_seconds
        self._doing = "the start"
        self._give_up = time.monotonic() + patience_seconds
        self._lock = threading.Lock()
        self.claim: Callable[[], bool] = lambda: True

    def says(self, doing: str) -> None:
        """Begin the next step, called *doing*, with new patience."""
        self._doing = doing
        self._give_up = time.monotonic() + self._patience

    @property
    def doing(self) -> str:
        """The step that this rank is in."""
        return self._doing

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs; in the main thread only."""
        mine, pythons = socket.socketpair()
        pythons.setblocking(False)
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            signal.signal(number, lambda *_: None)
        wakes = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(mine, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            signal.set_wakeup_fd(wakes)
            for number, handler in before.items():
                signal.signal(number, handler)
            mine.close()
            pythons.close()

    def end(self, sentence: str) -> NoReturn:
        """End this process; print *sentence* unless another rank has said why already."""
        with self._lock:
            if self._is_mine_to_say():
                print(f"rank-probe: {sentence}", file=sys.stderr, flush=True)
            if self._rank == 0:  # Its process may serve the store that the others ask.
                time.sleep(CLAIM_SECONDS)
            os._exit(CANNOT_MEASURE)

    def _watch(self, signals: socket.socket, done: threading.Event) -> None:
        while not done.is_set():
            if select.select([signals], [], [], POLL_SECONDS)[0]:
                name = signal.Signals(signals.recv(1)[0]).name
                self.end(
                    f"rank {self._rank} was ended by {name} during {self._doing}; if you did not "
                    "do that, the launcher did, because another rank ended: see what it says"
                )
            if time.monotonic() > self._give_up:
                self.end(
                    f"rank {self._rank} waited {self._patience:.0f} s in vain during "
                    f"{self._doing}: a rank has ended or hangs, or a link is down; for slow links "
                    "raise --timeout"
                )

    def _is_mine_to_say(self) -> bool:
        answer: list[bool] = []

        def ask() -> None:
            # A store that is lost fails with whatever its client raises.
            with contextlib.suppress(RuntimeError, OSError, ValueError):
                answer.append(self.claim())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(CLAIM_SECONDS)
        return answer[0] if answer else True


def claim_in(store: Any, rank: int) -> Callable[[], bool]:
    """Return a claim that one rank of all that share *store* makes with success."""

    def claim() -> bool:
        return bool(store.compare_set(CLAIM, "", str(rank)) == str(rank).encode())

    return claim
