"""What each rank writes of itself: a record for each step that it finished."""

import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.faults.ranks.pauses import Paused

RECORD: Final = struct.Struct("<ddddd")


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step: when, its length and the longest pause in it, in seconds.

    *ended* is by the reader's wall clock. *paused_seconds* is what the probe used of a CPU in the
    pause, *held_up_seconds* its length by the clock; *empty_seconds* is the longest pause of an
    empty loop that used a CPU for as long as the probe did in the step.
    """

    ended: float
    seconds: float
    paused_seconds: float
    held_up_seconds: float
    empty_seconds: float


@dataclass(frozen=True, slots=True)
class Life:
    """What one process of *rank* counted, first step first; process id *pid*."""

    rank: int
    pid: int
    steps: tuple[Step, ...]

    def counted(self, at: float) -> int:
        """Return how many steps it had finished at *at*, seconds of the wall clock."""
        return sum(step.ended <= at for step in self.steps)


class Recorder:
    """Appends the records of this process to its own file; each reaches the system at once.

    Times in the file are monotonic: the wall clock of a rank may be set while it runs.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        path = directory / f"{rank}-{os.getpid()}.steps"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, seconds: float, paused: Paused, empty_seconds: float) -> None:
        """Append a step that ends now."""
        longest = (paused.seconds, paused.held_up_seconds, empty_seconds)
        os.write(self._file, RECORD.pack(time.monotonic(), seconds, *longest))


def read(directory: Path) -> list[Life]:
    """Return the lives that were recorded in *directory*, by rank and first step."""
    lives = [_life(path) for path in directory.glob("*.steps")]
    return sorted(
        (life for life in lives if life.steps), key=lambda life: (life.rank, _began(life))
    )


def _life(path: Path) -> Life:
    rank, pid = path.stem.split("-")
    data = path.read_bytes()
    whole = data[: len(data) // RECORD.size * RECORD.size]  # A kill may leave half a record.
    offset = time.time() - time.monotonic()
    steps = (Step(ended + offset, *rest) for ended, *rest in RECORD.iter_unpack(whole))
    return Life(int(rank), int(pid), tuple(steps))


def _began(life: Life) -> float:
    return life.steps[0].ended
