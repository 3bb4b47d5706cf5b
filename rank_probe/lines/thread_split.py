"""Splits some milliseconds of a thread into running, waiting for a CPU, and being blocked."""

from collections.abc import Callable
from typing import Final

from rank_probe.lines.system_calls import BLOCKED, CPU_QUEUE, LOCK, RUNNING, Wait
from rank_probe.lines.thread_clocks import ThreadLook

# Less than this share is what handing over the interpreter to the sampler takes.
LEAST_BLOCKED: Final = 0.1

# A thread that ran for this share of a time in which nobody else could have the interpreter had it.
HAD_IT: Final = 0.9

Shares = list[tuple[Wait, float]]


def split(first: ThreadLook, last: ThreadLook, wait: Callable[[bytes], Wait | None]) -> Shares:
    """Return in what the thread spent the time between two looks; the shares add up to 1.

    *wait* names what a call waits for. At both looks the sampler holds the interpreter, so a thread
    that runs Python waits for a lock then; but its clocks tell that it ran before. The clocks leave
    what it was blocked for, and the call at the end says in what. A wait for the sampler itself,
    which had the interpreter but no CPU, is not counted.
    """
    elapsed = last.at - first.at
    running = min(max(last.cpu - first.cpu, 0), elapsed)
    queue = min(max(last.queue - first.queue, 0), elapsed - running)
    rest = elapsed - running - queue
    shares: Shares = [(Wait(RUNNING), running), (Wait(CPU_QUEUE), queue)]
    if rest > LEAST_BLOCKED * elapsed:
        what = _blocked_in(first, last, wait)
        if what.state == LOCK:
            rest = max(rest - max(last.own_queue - first.own_queue, 0), 0)
        shares.append((what, rest))
    total = sum(each for _, each in shares)
    return [(what, each / total) for what, each in shares if each > 0]


def held(
    before: ThreadLook,
    first: ThreadLook,
    delay: int,
    process_cpu: int,
    wait: Callable[[bytes], Wait | None],
) -> Shares:
    """Return in what the thread spent the *delay*, until *first*; the shares add up to 1.

    The sampler should have looked that much earlier, but waited for the interpreter: somebody kept
    it in a call of C, perhaps the thread. *before* was the last look until then, *process_cpu* what
    all threads used since.
    """
    elapsed = max(first.at - before.at, delay, 1)
    ran = min(max(first.cpu - before.cpu, 0), elapsed)
    queued = min(max(first.queue - before.queue, 0), elapsed - ran)
    had = ran + queued
    # Of the delay, or what is usual if it was not the thread that kept the interpreter.
    of = had if had >= HAD_IT * delay else elapsed
    shares: Shares = [(Wait(RUNNING), ran / of), (Wait(CPU_QUEUE), queued / of)]
    if of == elapsed and had < elapsed:
        what = wait(first.call)
        if what is None or what.state == LOCK:
            rest = delay * (1 - had / elapsed)
            # Who keeps the interpreter and uses no CPU is blocked in something.
            what = Wait(LOCK) if process_cpu - ran > rest / 2 else Wait(BLOCKED)
        shares.append((what, 1 - had / elapsed))
    return [each for each in shares if each[1] > 0]


def _blocked_in(first: ThreadLook, last: ThreadLook, wait: Callable[[bytes], Wait | None]) -> Wait:
    """Return what the thread was blocked in, from the two looks.

    A lock at the end may be the interpreter, which the sampler has, after another wait.
    """
    at_end = wait(last.call)
    if at_end is not None and at_end.state != LOCK:
        return at_end
    return wait(first.call) or at_end or _ready(last)


def _ready(last: ThreadLook) -> Wait:
    """Return what a thread waited for that was ready at both looks.

    The kernel counts a wait for a CPU when it ends. A thread that runs now was blocked in between.
    """
    return Wait(BLOCKED) if last.is_on_cpu else Wait(CPU_QUEUE)
