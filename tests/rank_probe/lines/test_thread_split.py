"""A delay of the sampler is divided by what the clocks say of it."""

from rank_probe.lines.system_calls import BLOCKED, CPU_QUEUE, LOCK, RUNNING, SLEEP, Wait
from rank_probe.lines.thread_clocks import ThreadLook
from rank_probe.lines.thread_split import held

MS = 1_000_000
BEFORE = ThreadLook(at=0, cpu=0, queue=0, own_queue=0, call=b"")
CALLS = {b"lock": Wait(LOCK), b"sleep": Wait(SLEEP), b"running": None}


def shares(
    ran: int, used: int, call: bytes = b"lock", queued: int = 0, delay: int = 80
) -> dict[str, float]:
    """Return how *delay* ms are divided, after 20 ms; all threads *used* so much CPU."""
    first = ThreadLook(100 * MS, ran * MS, queued * MS, 0, call)
    found = held(BEFORE, first, delay * MS, used * MS, CALLS.__getitem__)
    return {wait.state: round(share, 3) for wait, share in found}


def test_thread_that_kept_the_interpreter_ran() -> None:
    """It used nearly all of the delay, wherever it was before and after."""
    assert shares(ran=80, used=80) == {RUNNING: 1.0}
    assert shares(ran=100, used=100, call=b"running") == {RUNNING: 1.0}
    assert shares(ran=75, used=75, call=b"sleep") == {RUNNING: 1.0}
    assert shares(ran=40, used=40, queued=40) == {RUNNING: 0.5, CPU_QUEUE: 0.5}


def test_thread_that_waited_for_another_one_has_a_lock() -> None:
    """It ran for some of the time, and others for the rest."""
    assert shares(ran=20, used=100) == {RUNNING: 0.2, LOCK: 0.8}


def test_thread_that_sleeps_while_another_one_computes_sleeps() -> None:
    """That the sampler waits does not make it wait."""
    assert shares(ran=0, used=100, call=b"sleep") == {SLEEP: 1.0}


def test_nobody_ran_while_the_interpreter_was_kept() -> None:
    """A call of C waits for something and keeps it: nothing says for what."""
    assert shares(ran=0, used=1) == {BLOCKED: 1.0}
