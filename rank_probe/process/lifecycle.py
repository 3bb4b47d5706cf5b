"""When the events of a process's life began and ended: start, rendezvous, first step, end."""

import os
import time
from collections.abc import Callable
from pathlib import Path

# When events began and ended.
Spans = dict[str, tuple[float | None, float | None]]


class Lifecycle:
    """Records when the events of a process's life happen; each counts the first time.

    It uses the monotonic clock, so setting the wall clock changes nothing. The training thread
    records the events; any thread may read.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        age: Callable[[], float | None] | None = None,
    ) -> None:
        self._now = now
        self._probe_started = now()
        seconds = (age or process_age_seconds)()
        self._started = None if seconds is None else self._probe_started - seconds
        self._rendezvous_began: float | None = None
        self._rendezvous_ended: float | None = None
        self._first_step: float | None = None
        self._ended: float | None = None
        self._note()

    def rendezvous_begins(self) -> None:
        """The process group is being created; a failed attempt is forgotten."""
        if self._rendezvous_ended is None:
            self._rendezvous_began = self._now()
            self._note()

    def rendezvous_ended(self) -> None:
        """All ranks have met."""
        if self._rendezvous_ended is None:
            self._rendezvous_ended = self._now()
            self._note()

    def first_step_done(self) -> None:
        """The first whole step has ended."""
        if self._first_step is None:
            self._first_step = self._now()
            self._note()

    def end(self) -> None:
        """The process ends cleanly."""
        if self._ended is None:
            self._ended = self._now()
            self._note()

    def _note(self) -> None:
        """Note when each event began and ended, by the monotonic clock.

        If no rendezvous was seen (a single rank, or the probe started later), `first_step` runs
        from the start of the probe.
        """
        met = self._rendezvous_ended
        # Replaced as a whole, for each push to read.
        self.spans: Spans = {
            "init": (self._started, self._rendezvous_began),
            "rendezvous": (self._rendezvous_began, met),
            "first_step": (self._probe_started if met is None else met, self._first_step),
            "end": (self._first_step, self._ended),
        }


def process_age_seconds(stat: Path = Path("/proc/self/stat")) -> float | None:
    """Return how long ago this process started, to a clock tick; None where Linux does not say."""
    try:
        # The second field is the command in parentheses, and may contain anything; the start is
        # the 22nd (proc_pid_stat(5)), in ticks since boot.
        ticks = int(stat.read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # AttributeError: not on Linux
        return None
