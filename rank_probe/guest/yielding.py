"""Pauses in the work of the probe's own threads, so that training never waits long for one."""

import time
from threading import get_ident
from typing import Final

# Long enough for a thread that waits for the interpreter to wake up and take it, on a busy machine.
TURN_SECONDS: Final = 1e-3
WORK_SECONDS: Final = 3e-4
# When each thread last let others have the interpreter: a threading.local costs four times as much.
_waited: Final[dict[int, float]] = {}


def has_waited() -> None:
    """Note that this thread has just waited for something else, so others had the interpreter."""
    _waited[get_ident()] = time.perf_counter()


def give_way() -> None:
    """Release the interpreter lock to waiting threads if this one has worked for WORK_SECONDS.

    Call it often, because a machine may be slow. Python alone would make the other thread wait
    5 ms (sys.setswitchinterval, which belongs to the user).
    """
    if time.perf_counter() - _waited.get(get_ident(), 0.0) >= WORK_SECONDS:
        time.sleep(TURN_SECONDS)
        has_waited()
