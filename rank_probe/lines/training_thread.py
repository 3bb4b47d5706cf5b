"""Pairs of looks at the training thread, or at the autograd thread that works for it."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Final

from rank_probe.guest.imports import imported
from rank_probe.guest.yielding import give_way
from rank_probe.lines.loop_frames import LAYOUTS_KEPT, Spot, called_at
from rank_probe.lines.sample_window import WHOLE, StateShare
from rank_probe.lines.system_calls import BLOCKED, CPU_QUEUE, GPU, LOCK, PIPE, PYTHON, RUNNING, Wait
from rank_probe.lines.thread_clocks import (
    Other,
    OtherThreads,
    ThreadEnded,
    ThreadLook,
    WatchedThread,
)
from rank_probe.lines.user_code import CodeLine

_LOADER: Final = os.path.join("torch", "utils", "data", "dataloader.py")
_ENGINE: Final = os.path.join("torch", "autograd", "graph.py")
# Calls that return once the GPU has finished its queued work. The thread spins meanwhile.
_OF_GPU: Final = frozenset(
    {"item", "tolist", "cpu", "numpy", "nonzero", "synchronize", "_cuda_synchronize"}
)
# Frames in which a wait for a lock is really a wait for a batch.
_FETCHES: Final = frozenset({"_get_data", "_try_get_data"})
MOST_INNER: Final = 8
# A smaller share is only the cost of handing the interpreter lock to the sampler.
LEAST_BLOCKED: Final = 0.1

# A thread that ran for this share of the sampler's delay held the interpreter lock.
HAD_IT: Final = 0.9
# Another thread held it if it ran for this share of the wait. With few CPUs it waits for one, too.
HAS_IT: Final = 0.25
# A thread that requested it for this share of a delay and LEAST_ASKED nanoseconds waited for it.
ASKED: Final = 0.7
LEAST_ASKED: Final = 50_000_000
NANOSECONDS: Final = 1_000_000_000

Shares = list[tuple[Wait, float]]


class TorchCalls:
    """Corrects what a thread waits for, by its stack; for one thread."""

    def __init__(self) -> None:
        torch = imported("torch")
        self.has_gpu = torch is not None and bool(torch.cuda.is_initialized())
        # By identity: the hash of a code reads all of it. The values keep the identities in use.
        self._called: dict[tuple[int, int], tuple[CodeType, str]] = {}

    def runs_elsewhere(self, code: CodeType | None) -> bool:
        """Whether a thread in *code* only waits for autograd's own thread.

        With a GPU, the engine runs backward on a separate thread.
        """
        if not self.has_gpu or code is None:
            return False
        return code.co_name == "_engine_run_backward" and code.co_filename.endswith(_ENGINE)

    def what(self, wait: Wait, stack: Sequence[Spot]) -> Wait:
        """Return what *wait* is on this *stack*, innermost first."""
        if wait.mount:
            return wait
        if wait.state == LOCK and _fetches(stack):
            return Wait(PIPE)  # Torch's pin-memory thread sits between the workers and this one.
        may_ask = self.has_gpu and stack and wait.state in (RUNNING, LOCK, BLOCKED)
        return Wait(GPU) if may_ask and self._name(stack[0]) in _OF_GPU else wait

    def _name(self, spot: Spot) -> str:
        key = id(spot.code), spot.offset
        known = self._called.get(key)
        if known is None:
            if len(self._called) >= LAYOUTS_KEPT:
                self._called.clear()
            known = self._called[key] = spot.code, called_at(spot)
        return known[1]


def engine_thread(tasks: str = "/proc/self/task") -> int | None:
    """Return the thread id of the busiest autograd thread, which serves this rank's GPU."""
    worked: dict[int, int] = {}
    for tid in os.listdir(tasks):
        try:
            with open(f"{tasks}/{tid}/comm") as comm, open(f"{tasks}/{tid}/schedstat") as schedstat:
                if comm.read().startswith("pt_autograd"):
                    worked[int(tid)] = int(schedstat.read().split()[0])
        except (OSError, ValueError, IndexError):
            continue  # The thread has ended, or the kernel keeps no schedstat.
        give_way()
    return max(worked, key=lambda tid: worked[tid], default=None)


def _fetches(stack: Sequence[Spot]) -> bool:
    return any(
        code.co_name in _FETCHES and code.co_filename.endswith(_LOADER)
        for code, _ in stack[:MOST_INNER]
    )


def split(
    first: ThreadLook, last: ThreadLook, other: Other, wait: Callable[[bytes], Wait | None]
) -> Shares:
    """Return how the thread spent the time between two looks; the shares add up to 1.

    *other* is the other thread that ran most meanwhile; *wait* names what a call waits for. The
    sampler holds the interpreter lock at both looks, and a thread that runs Python then waits for
    it; its clocks still show that it ran before. Time on neither clock is blocked time, and the
    call at the end names the reason. Waiting for a sampler that held the lock without a CPU is not
    counted.
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
        if what.link == PYTHON:
            what = Wait(LOCK, other.place if other.ran >= HAS_IT * rest else "")
        shares.append((what, rest))
    total = sum(each for _, each in shares)
    return [(what, each / total) for what, each in shares if each > 0]


def at_last(
    first: ThreadLook, last: ThreadLook, other: Other, wait: Callable[[bytes], Wait | None]
) -> Shares:
    """Return what the thread did at *last*, in `split`'s form, as one share of 1."""
    what = wait(last.call)
    if what is None:
        what = Wait(RUNNING if last.is_on_cpu else CPU_QUEUE)
    elif what.link == PYTHON:  # Waits for the sampler, which holds it now, or for *other*.
        is_held = other.ran >= HAS_IT * (last.at - first.at)
        what = Wait(LOCK, other.place) if is_held else Wait(RUNNING)
    return [(what, 1.0)]


def held(
    before: ThreadLook,
    first: ThreadLook,
    delay: int,
    other: Other,
    wait: Callable[[bytes], Wait | None],
    is_there: bool,
) -> Shares:
    """Return how the thread spent the *delay* (nanoseconds) until *first*; the shares add up to 1.

    The sampler was due that much earlier, but waited for the interpreter lock: some thread, perhaps
    this one, held it in a C call. *before* is the previous look; *other* is the other thread that
    ran most since.
    """
    elapsed = max(first.at - before.at, delay, 1)
    ran = min(max(first.cpu - before.cpu, 0), elapsed)
    queued = min(max(first.queue - before.queue, 0), elapsed - ran)
    had = ran + queued
    # If this thread held the lock, divide by what it used; otherwise by the whole interval.
    of = had if had >= HAD_IT * delay else elapsed
    shares: Shares = [(Wait(RUNNING), ran / of), (Wait(CPU_QUEUE), queued / of)]
    if of == elapsed and had < elapsed:
        what = wait(first.call) if is_there else None
        # A waiter wakes at each switch interval to ask, and may get the lock before the sampler.
        asked = (first.turns - before.turns) * sys.getswitchinterval() * NANOSECONDS
        if what is None or what.link == PYTHON or asked >= ASKED * delay >= LEAST_ASKED:
            has_it = other.ran > HAS_IT * delay * (1 - had / elapsed)
            # A lock holder that uses no CPU is itself blocked in something.
            what = Wait(LOCK, other.place) if has_it else Wait(BLOCKED)
        shares.append((what, 1 - had / elapsed))
    return [each for each in shares if each[1] > 0]


def _blocked_in(first: ThreadLook, last: ThreadLook, wait: Callable[[bytes], Wait | None]) -> Wait:
    """Return what the thread was blocked in, from the two looks.

    A lock at the end may be the interpreter's, held by the sampler, after a different wait.
    """
    at_end = wait(last.call)
    if at_end is not None and at_end.state != LOCK:
        return at_end
    # Used if ready at both looks: a thread that runs now was blocked in between, and one that does
    # not waits for a CPU, which the kernel counts only when the wait ends.
    ready = Wait(BLOCKED) if last.is_on_cpu else Wait(CPU_QUEUE)
    return wait(first.call) or at_end or ready


class TrainingThread:
    """Looks at the thread that does the work; for the sampling thread.

    *place* is for OtherThreads.
    """

    def __init__(self, place: Callable[[threading.Thread], str]) -> None:
        self._torch = TorchCalls()
        self._others = OtherThreads(place)
        self._by_tid: dict[int, WatchedThread] = {}
        self._engine: int | None = None
        self._now: WatchedThread | None = None
        self._before: ThreadLook | None = None  # The end of the look before at the same thread.

    def begin(self, ident: int) -> ThreadLook | None:
        """Look at the thread *ident*, or at the one that works for it; None if it has ended."""
        frame = sys._current_frames().get(ident)
        if self._torch.runs_elsewhere(None if frame is None else frame.f_code):
            tid = self._engine = self._engine or engine_thread()
        else:
            own = (each.native_id for each in threading.enumerate() if each.ident == ident)
            tid = next(own, None)
        if tid is not None and tid not in self._by_tid:
            self._by_tid[tid] = WatchedThread(tid)
        now = None if tid is None else self._by_tid[tid]
        if now is not self._now:
            self._now, self._before = now, None
        return self._look(WatchedThread.begin)

    def end(self) -> ThreadLook | None:
        """Look at it again; None if it has ended."""
        self._before = self._look(WatchedThread.end)
        return self._before

    def delay(self, first: ThreadLook | None, due: int) -> int:
        """Return how many nanoseconds after *due* the sampler waited for the interpreter lock.

        *first* is what begin() returned. Waiting for a CPU does not count.
        """
        if first is None or self._before is None:
            return 0
        queued = max(first.own_queue - self._before.own_queue, 0)
        return max(first.at - due - queued, 0)

    def held(
        self,
        first: ThreadLook | None,
        delay: int,
        is_there: bool,
        stack: Sequence[Spot],
        line: CodeLine | None,
    ) -> tuple[StateShare, ...]:
        """Return how the thread spent the *delay* before *first*; call before end()."""
        if first is None or self._before is None or self._now is None:
            return ()
        other = self._others.busiest()
        shares = held(self._before, first, delay, other, self._now.wait, is_there)
        return self._parts(shares, stack, line)

    def parts(
        self,
        first: ThreadLook | None,
        last: ThreadLook | None,
        is_one_stage: bool,
        stack: Sequence[Spot],
        line: CodeLine | None,
    ) -> tuple[StateShare, ...]:
        """Return how the thread, on *stack*, spent the time between *first* and *last*.

        If the two looks are in different stages, return what it did at *last*.
        """
        if first is None or last is None or self._now is None:
            return ()
        told = split if is_one_stage else at_last
        return self._parts(told(first, last, self._others.busiest(), self._now.wait), stack, line)

    def _parts(
        self, shares: Shares, stack: Sequence[Spot], line: CodeLine | None
    ) -> tuple[StateShare, ...]:
        found = [(self._torch.what(what, stack), share) for what, share in shares]
        return tuple(
            StateShare(what.state, what.mount, line, round(WHOLE * share)) for what, share in found
        )

    def close(self) -> None:
        """Look no more."""
        for each in self._by_tid.values():
            each.close()

    def _look(self, at: Callable[[WatchedThread], ThreadLook]) -> ThreadLook | None:
        now = self._now
        try:
            return None if now is None else at(now)
        except ThreadEnded:
            return None
        finally:
            self._others.look(0 if now is None else now.tid)
