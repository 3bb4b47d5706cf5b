"""The share of the steps that a rank has offered to the join and that were joined."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from rank_probe.join.ring import ROUNDS, Pace, is_sampled

WINDOW_SECONDS: Final = 60.0
# Posting, merging and reading back a step takes up to a round each; after this it is late.
LATE_ROUNDS: Final = 4
# Ranks are at most one step apart: some may not have seen the end of that step or the next yet.
ALWAYS_PENDING: Final = 2


class JoinCoverage:
    """The share of the last minute's offered steps that was joined, for one thread.

    A step counts once it is due: a later step was joined, or it is LATE_ROUNDS old and not one of
    the last ALWAYS_PENDING. If no step is due, as with steps longer than a minute, the last share
    stays.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._pending: deque[tuple[int, float]] = deque()
        self._due = 0
        self._has_begun = False
        self._history: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])
        self.ratio: float | None = None

    def offer(self, steps: Iterable[int], now: float) -> None:
        """Record that *steps* are offered from *now* on, in seconds of one clock."""
        self._pending.extend((step, now) for step in steps)

    def sample(self, stride: int) -> None:
        """Expect no steps any more that are not in the sample of one in *stride*."""
        self._pending = deque(each for each in self._pending if is_sampled(each[0], stride))

    def joined(self, steps: int, last_step: int, now: float) -> None:
        """Record that *steps* were joined so far, up to step number *last_step*."""
        pending = self._pending
        if steps and not self._has_begun:
            # Steps offered while waiting for ranks that take no part were not missed.
            self._has_begun = True
            while pending and now - pending[0][1] > ROUNDS * self._pace.seconds:
                pending.popleft()
            self._due, self._history = 0, deque([(0.0, 0, 0)])
        while pending and (pending[0][0] <= last_step or self._is_lost(now)):
            pending.popleft()
            self._due += 1
        history = self._history
        while len(history) > 1 and history[1][0] <= now - WINDOW_SECONDS:
            history.popleft()
        _, due_before, joined_before = history[0]
        if self._due > due_before:
            self.ratio = min((steps - joined_before) / (self._due - due_before), 1.0)
        if self._due > history[-1][1]:
            history.append((now, self._due, steps))

    def _is_lost(self, now: float) -> bool:
        is_old = now - self._pending[0][1] > LATE_ROUNDS * self._pace.seconds
        return is_old and len(self._pending) > ALWAYS_PENDING
