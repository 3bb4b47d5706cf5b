"""A proc file system of a few files, and processes for tests that need none."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporter.processes.process import Process

TORCHRUN = {"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "llama"}


def torchrun(rank: int, **variables: str) -> dict[str, str]:
    """Return what torchrun sets for *rank* of four in job llama, and *variables*."""
    return {**TORCHRUN, "RANK": str(rank), "LOCAL_RANK": str(rank), **variables}


def process(pid: int, environment: Mapping[str, str] | None = None, **fields: Any) -> Process:
    """Return a process of user 1000 on CPUs 0 and 1 that started at tick *pid*."""
    known: dict[str, Any] = {
        "start_ticks": pid,
        "name": "python",
        "uid": 1000,
        "namespace_pid": pid,
        "cpus": frozenset({0, 1}),
        **fields,
    }
    return Process(pid=pid, environment=environment, **known)


class FakeProc:
    """Writes /proc/<pid> into *path*."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        cpus = "".join(f"cpu{number} 1 2 3\n" for number in range(4))
        (path / "stat").write_text(f"cpu  9 9 9\n{cpus}intr 5 6\n")
        self.add(1, parent=0)

    def add(
        self,
        pid: int,
        environment: Mapping[str, str] | bytes = b"",
        *,
        parent: int = 1,
        start: int = 1000,
        name: str = "python",
        cpus: str = "0-1",
        namespace_pids: str = "",
        cgroup: str = "0::/user.slice",
        uts: str = "uts:[1]",
    ) -> None:
        """Write a process, in place of the one that had the id before."""
        directory = self.path / str(pid)
        (directory / "ns").mkdir(parents=True, exist_ok=True)
        ticks = " ".join(["0"] * 17)
        (directory / "stat").write_text(f"{pid} ({name}) S {parent} {ticks} {start} 0 0\n")
        (directory / "status").write_text(
            f"Name:\t{name}\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t{namespace_pids or pid}\n"
            f"Cpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n"
        )
        (directory / "cgroup").write_text(f"{cgroup}\n")
        self.set_environment(pid, environment)
        (directory / "ns" / "uts").unlink(missing_ok=True)
        os.symlink(uts, directory / "ns" / "uts")

    def use(
        self,
        pid: int,
        *,
        parent: int = 1,
        start: int = 1000,
        state: str = "S",
        cpu: int = 0,
        ended_cpu: int = 0,
        faults: int = 0,
        ended_faults: int = 0,
        read: int | None = None,
        run_queue: int | None = None,
    ) -> None:
        """Set what a process, new or not, has used since it started; for None there is no file.

        CPU time is in ticks, half of them in the kernel; the run queue in nanoseconds.
        """
        directory = self.path / str(pid)
        directory.mkdir(exist_ok=True)
        user, ended_user = cpu - cpu // 2, ended_cpu - ended_cpu // 2
        ticks = f"{user} {cpu // 2} {ended_user} {ended_cpu // 2}"
        (directory / "stat").write_text(
            f"{pid} (pt) main (1) {state} {parent} 0 0 0 0 0 7 7 {faults} {ended_faults} {ticks} "
            f"20 0 1 0 {start} 0 0\n"
        )
        for name, value, text in (
            ("io", read, f"rchar: 9\nwchar: 9\nread_bytes: {read}\nwrite_bytes: 9\n"),
            ("schedstat", run_queue, f"77 {run_queue} 5\n"),
        ):
            if value is None:
                (directory / name).unlink(missing_ok=True)
            else:
                (directory / name).write_text(text)

    def end(self, pid: int) -> None:
        """Remove a process."""
        shutil.rmtree(self.path / str(pid))

    def set_environment(self, pid: int, environment: Mapping[str, str] | bytes) -> None:
        """Write a block of variables, each ended by a zero byte."""
        if not isinstance(environment, bytes):
            pairs = (f"{name}={value}\0" for name, value in environment.items())
            environment = "".join(pairs).encode()
        (self.path / str(pid) / "environ").write_bytes(environment)

    def hide_environment(self, pid: int) -> None:
        """Make the environment unreadable, even for root, by putting a directory in its place."""
        (self.path / str(pid) / "environ").unlink()
        (self.path / str(pid) / "environ").mkdir()
