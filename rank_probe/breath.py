"""Pauses in the work of the probe's own threads, so that training never waits long for one."""

import time
from typing import Final

# Long enough for a thread that waits for the interpreter to wake up and take it, on a busy machine.
BREATH_SECONDS: Final = 1e-3


def breathe() -> None:
    """Let a waiting thread have the interpreter; call it after a quarter of a millisecond of work.

    Python itself would make that thread wait for 5 ms (sys.setswitchinterval, which is the user's).
    """
    time.sleep(BREATH_SECONDS)
