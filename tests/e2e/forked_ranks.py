"""Ranks of several jobs as forks of one process, so that torch is imported once for all of them.

A rank that imports torch for itself computes for three seconds; a fork trains after a tenth of one.
"""

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[2]


class ForkedRanks:
    """A process that forks ranks, which report to *exporter* and log to *directory*."""

    def __init__(self, directory: Path, exporter: str) -> None:
        self._directory = directory
        self._environment = {"RANKSKEW_EXPORTER": exporter, "OMP_NUM_THREADS": "1"}
        self._stores: list[object] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.forked_ranks"],
            cwd=ROOT,
            env={**os.environ, **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # With its end, that of all ranks.

    def start(self, job_id: str, script: Path, *arguments: str, ranks: int = 4) -> list[int]:
        """Start *script* under the probe in every rank of *job_id*; return the process ids."""
        from torch._C._distributed_c10d import TCPStore  # Here: few workers need torch.

        # As torchrun's agent, this process has the store: no port is guessed.
        wait = timedelta(seconds=60)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait)
        self._stores.append(store)
        environment = {
            "RANKSKEW_JOB_ID": job_id,
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        asked = {
            "ranks": ranks,
            "argv": ["rank_probe", str(script), *arguments],
            "environment": environment,
            "log": str(self.log(job_id)),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        started: list[int] = json.loads(self._process.stdout.readline())
        return started

    def log(self, job_id: str) -> Path:
        """Return where the output of the ranks is."""
        return self._directory / f"{job_id}.log"


def main() -> None:
    """Fork the ranks of each job that a line of stdin asks for, and end all when there is no more.

    Nothing here may start a thread: a fork takes over the locks that it holds.
    """
    import torch._dynamo
    import torch.nn.parallel
    import torch.utils.data  # noqa: F401 - what a training imports, so that no fork has to

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Whoever has ended is gone at once.
    started: list[int] = []
    while line := sys.stdin.readline():
        job = json.loads(line)
        ranks = [fork(rank, job) for rank in range(job["ranks"])]
        started += ranks
        print(json.dumps(ranks), flush=True)
    for rank in started:
        try:
            os.kill(rank, signal.SIGKILL)
        except ProcessLookupError:
            continue


def fork(rank: int, job: dict[str, Any]) -> int:
    """Start one rank, as torchrun would, and return its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for mine, theirs in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(mine, theirs)
        os.environ |= {**job["environment"], "RANK": str(rank), "LOCAL_RANK": str(rank)}
        sys.argv = job["argv"]
        runpy.run_module("rank_probe", run_name="__main__", alter_sys=True)
        status = 0
    finally:
        atexit._run_exitfuncs()  # The probe's last push is one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # Never back into the loop that forks.


if __name__ == "__main__":
    main()
