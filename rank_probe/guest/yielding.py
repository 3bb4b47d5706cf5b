"""Pauses in the work of the probe's own threads, so that training never waits long for one."""

import threading
import time
from typing import Final

# Long enough for a thread that waits for the interpreter to wake up and take it, on a busy machine.
TURN_SECONDS: Final = 1e-3
WORK_SECONDS: Final = 3e-4


class _Last(threading.local):
    at = 0.0


_last: Final = _Last()


def has_waited() -> None:
    """Note that this thread has just waited for something else, so others had the interpreter."""
    _last.at = time.perf_counter()


def give_way() -> None:
    """Let a waiting thread have the interpreter, if this one has worked for WORK_SECONDS.

    Call it often: a machine may be slow. Python itself would make the other thread wait for 5 ms
    (sys.setswitchinterval, which is the user's).
    """
    if time.perf_counter() - _last.at >= WORK_SECONDS:
        time.sleep(TURN_SECONDS)
        _last.at = time.perf_counter()
