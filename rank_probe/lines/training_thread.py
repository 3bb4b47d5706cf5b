"""Pairs of looks at the thread that trains, or at torch's own thread that works for it."""

import sys
import threading
import time
from collections.abc import Callable, Sequence

from rank_probe.lines.loop_frames import Spot
from rank_probe.lines.sample_window import WHOLE, StateShare
from rank_probe.lines.system_calls import Reader
from rank_probe.lines.thread_clocks import ThreadEnded, ThreadLook, WatchedThread
from rank_probe.lines.thread_split import Shares, held, split
from rank_probe.lines.torch_calls import TorchCalls, engine_thread
from rank_probe.lines.user_code import CodeLine


class TrainingThread:
    """Looks at the thread that does the work; for the sampling thread."""

    def __init__(self) -> None:
        self._torch = TorchCalls()
        self._reader = Reader()
        self._by_tid: dict[int, WatchedThread] = {}
        self._tids: dict[int, int | None] = {}
        self._engine: int | None = None
        self._now: WatchedThread | None = None
        # The end of the look before: of which thread, and what the process had used.
        self._before: tuple[WatchedThread, ThreadLook, int] | None = None

    def begin(self, ident: int) -> ThreadLook | None:
        """Look at the thread *ident*, or at the one that works for it; None if it has ended."""
        frame = sys._current_frames().get(ident)
        code = None if frame is None else frame.f_code
        elsewhere = self._torch.runs_elsewhere(code)
        tid = self._engine_tid() if elsewhere else self._tid(ident)
        self._now = None if tid is None else self._watched(tid)
        return self._look(WatchedThread.begin)

    def end(self) -> ThreadLook | None:
        """Look at it again; None if it has ended."""
        look, now = self._look(WatchedThread.end), self._now
        if look is None or now is None:
            self._before = None
        else:
            self._before = now, look, time.process_time_ns()
        return look

    def delay(self, first: ThreadLook | None, due: int) -> int:
        """Return for how many nanoseconds after *due* the interpreter was kept from this thread.

        *first* is what begin() returned. Waiting for a CPU does not count.
        """
        if first is None or self._before is None or self._before[0] is not self._now:
            return 0
        queued = max(first.own_queue - self._before[1].own_queue, 0)
        return max(first.at - due - queued, 0)

    def held(
        self, first: ThreadLook | None, delay: int, stack: Sequence[Spot], line: CodeLine | None
    ) -> tuple[StateShare, ...]:
        """Return in what it spent the *delay* before *first*; call before end()."""
        if first is None or self._before is None or self._now is None:
            return ()
        _, before, process_cpu = self._before
        used = time.process_time_ns() - process_cpu
        return self._parts(held(before, first, delay, used, self._now.wait), stack, line)

    def parts(
        self,
        first: ThreadLook | None,
        last: ThreadLook | None,
        stack: Sequence[Spot],
        line: CodeLine | None,
    ) -> tuple[StateShare, ...]:
        """Return in what it spent the time between *first* and *last*, when it was on *stack*."""
        now = self._now
        if first is None or last is None or now is None:
            return ()
        return self._parts(split(first, last, now.wait), stack, line)

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
        if self._now is None:
            return None
        try:
            return at(self._now)
        except ThreadEnded:
            self._tids.clear()
            return None

    def _watched(self, tid: int) -> WatchedThread:
        known = self._by_tid.get(tid)
        if known is None:
            known = self._by_tid[tid] = WatchedThread(tid, self._reader)
        return known

    def _tid(self, ident: int) -> int | None:
        if ident not in self._tids:
            own = (each.native_id for each in threading.enumerate() if each.ident == ident)
            self._tids[ident] = next(own, None)
        return self._tids[ident]

    def _engine_tid(self) -> int | None:
        if self._engine is None:
            self._engine = engine_thread()
        return self._engine
