"""Which of a rank's processes are the workers of its data loader."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from exporter.processes.usage import beginning

# What torch calls the main thread of a worker, from 2.5 on.
NAME: Final = b"pt_data_worker"
# In the command line of a process that multiprocessing started as a program of its own.
SPAWNED: Final = (b"--multiprocessing-fork", b"multiprocessing.forkserver")
FORKSERVER: Final = SPAWNED[1]


def loader_workers(procfs: Path, pid: int, descendants: Iterable[int]) -> list[int]:
    """Return those *descendants* of the rank *pid* that are workers of a loader.

    By their name; with an older torch those that run the same program as the rank, because forking
    leaves the command line as it was. A logger's helper or a decoder is another program.
    """
    pids = list(descendants)
    named = [each for each in pids if (beginning(f"{procfs}/{each}/comm") or b"").strip() == NAME]
    if named:
        return named
    own = beginning(f"{procfs}/{pid}/cmdline")
    lines = {each: beginning(f"{procfs}/{each}/cmdline") for each in pids}
    return [each for each, line in lines.items() if line and (line == own or _is_spawned(line))]


def _is_spawned(line: bytes) -> bool:
    return any(each in line for each in SPAWNED)
