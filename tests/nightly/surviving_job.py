"""A job whose ranks survive the death of their peers, and what each of its processes counts."""

import struct
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

from torch._C._distributed_c10d import TCPStore

from devstack.process import StackProcess, wait_for

JOB_ID: Final = "faults"
RANKS: Final = 4
GENERATION: Final = "generation"
END_SECONDS: Final = 30.0
SCRIPT: Final = Path(__file__).with_name("surviving_rank.py")
# Of a step, when it ended by the monotonic clock: the wall clock may be set meanwhile.
RECORD: Final = struct.Struct("<d")


class Life(NamedTuple):
    """What one process of *rank* counted: when each step ended, in seconds of the wall clock."""

    rank: int
    steps: tuple[float, ...]

    def counted(self, at: float) -> int:
        """Return how many steps it had finished at *at*."""
        return sum(ended <= at for ended in self.steps)


def _life(path: Path) -> Life:
    data = path.read_bytes()
    whole = data[: len(data) // RECORD.size * RECORD.size]  # A kill may leave half a record.
    offset = time.time() - time.monotonic()
    return Life(
        int(path.stem.partition("-")[0]),
        tuple(ended + offset for (ended,) in RECORD.iter_unpack(whole)),
    )


class Job:
    """RANKS ranks, each a process that reports to *exporter*; a context manager.

    *environments* has what is added to the environment of a rank.
    """

    def __init__(
        self,
        directory: Path,
        exporter: str,
        environments: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._store = TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5)
        )
        self._store.set(GENERATION, "0")
        command = [sys.executable, "-m", "rank_probe", str(SCRIPT), str(directory)]
        command.append(f"127.0.0.1:{self._store.port}")
        common = {
            "WORLD_SIZE": str(RANKS),
            "RANKSKEW_EXPORTER": exporter,
            "RANKSKEW_JOB_ID": JOB_ID,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self.ranks = [
            StackProcess(
                f"rank {rank}",
                command,
                directory / f"rank{rank}.log",
                {
                    **common,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    **(environments or {}).get(rank, {}),
                },
            )
            for rank in range(RANKS)
        ]

    def lives(self) -> list[Life]:
        """Return what each process has counted so far, by rank and first step."""
        lives = [_life(path) for path in self._directory.glob("*.steps")]
        trained = [life for life in lives if life.steps]
        return sorted(trained, key=lambda life: (life.rank, life.steps[0]))

    def end(self) -> None:
        """Have the ranks end well; raises StackError if one does not."""
        (self._directory / "stop").touch()
        for rank in self.ranks:
            code = wait_for(lambda rank=rank: rank.exit_code, END_SECONDS)  # type: ignore[misc]
            if code != 0:
                raise rank.failure(f"ended with {code}")

    def __enter__(self) -> "Job":
        for rank in self.ranks:
            rank.start()
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.stop()
