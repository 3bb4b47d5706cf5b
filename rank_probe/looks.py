"""Pairs of looks at the thread that trains, or at torch's own thread that works for it."""

import sys
import threading
from collections.abc import Callable, Sequence

from rank_probe.loop_frames import Spot
from rank_probe.state_window import Part, whole
from rank_probe.thread_look import Gone, Look, Watched
from rank_probe.thread_split import split
from rank_probe.torch_calls import TorchCalls, engine_thread
from rank_probe.user_code import Line
from rank_probe.waits import Reader


class Looks:
    """Looks at the thread that does the work; for the sampling thread."""

    def __init__(self) -> None:
        self._torch = TorchCalls()
        self._reader = Reader()
        self._by_tid: dict[int, Watched] = {}
        self._tids: dict[int, int | None] = {}
        self._engine: int | None = None
        self._now: Watched | None = None

    def begin(self, ident: int) -> Look | None:
        """Look at the thread *ident*, or at the one that works for it; None if it has ended."""
        frame = sys._current_frames().get(ident)
        code = None if frame is None else frame.f_code
        elsewhere = self._torch.runs_elsewhere(code)
        tid = self._engine_tid() if elsewhere else self._tid(ident)
        self._now = None if tid is None else self._watched(tid)
        return self._look(Watched.begin)

    def end(self) -> Look | None:
        """Look at it again; None if it has ended."""
        return self._look(Watched.end)

    def parts(
        self, first: Look | None, last: Look | None, stack: Sequence[Spot], line: Line | None
    ) -> tuple[Part, ...]:
        """Return in what it spent the time between *first* and *last*, when it was on *stack*."""
        now = self._now
        if first is None or last is None or now is None:
            return ()
        shares = split(first, last, now.wait)
        found = [self._torch.what(what, stack) for what, _ in shares]
        return tuple(
            Part(what.state, what.mount, line, share)
            for what, share in zip(found, whole([share for _, share in shares]), strict=True)
        )

    def close(self) -> None:
        """Look no more."""
        for each in self._by_tid.values():
            each.close()

    def _look(self, at: Callable[[Watched], Look]) -> Look | None:
        if self._now is None:
            return None
        try:
            return at(self._now)
        except Gone:
            self._tids.clear()
            return None

    def _watched(self, tid: int) -> Watched:
        known = self._by_tid.get(tid)
        if known is None:
            known = self._by_tid[tid] = Watched(tid, self._reader)
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
