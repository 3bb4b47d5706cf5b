"""The job that trains through every fault: each rank a process of its own, beside one store."""

import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from benchmarks.faults.ranks import pauses
from benchmarks.faults.ranks.rank import GENERATION
from benchmarks.faults.ranks.records import Life, read
from devstack.process import StackProcess, wait_for

JOB_ID = "faults"
RANKS = 4
END_SECONDS = 30.0
SCRIPT = Path(__file__).parent / "rank.py"


class Job:
    """RANKS ranks that report to *exporter*; as a context manager, started and stopped.

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
        nap = pauses.build(directory)
        arguments = [str(directory), "--store", f"127.0.0.1:{self._store.port}", "--nap", str(nap)]
        command = [sys.executable, "-m", "rank_probe", str(SCRIPT), *arguments]
        self.ranks = [
            StackProcess(
                f"rank {rank}",
                command,
                directory / f"rank{rank}.log",
                {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(RANKS),
                    "RANKSKEW_EXPORTER": exporter,
                    "RANKSKEW_JOB_ID": JOB_ID,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONUNBUFFERED": "1",
                    **(environments or {}).get(rank, {}),
                },
            )
            for rank in range(RANKS)
        ]

    def lives(self) -> list[Life]:
        """Return what each process has counted so far."""
        return read(self._directory)

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
