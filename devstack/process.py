"""Finds a program, starts it, waits until it answers, and stops it with all that it started."""

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil

MARK = "RANKSKEW_DEMO_PROCESS"

Answer = TypeVar("Answer")


class StackError(Exception):
    """A part of the stack failed; the message has the part, and the end of its log."""


def wait_for(ask: Callable[[], Answer | None], seconds: float, every: float = 0.1) -> Answer | None:
    """Return the first answer of *ask* that is not None, or None after *seconds*."""
    deadline = time.monotonic() + seconds
    while (answer := ask()) is None and time.monotonic() < deadline:
        time.sleep(every)
    return answer


def find_program(names: Sequence[str]) -> str | None:
    """Return the path of the first of *names* that is installed."""
    return next((path for name in names if (path := shutil.which(name))), None)


def missing_programs(*programs: Sequence[str]) -> list[str]:
    """Return the package names of those *programs* that are not installed."""
    return [names[0] for names in programs if find_program(names) is None]


def program(names: Sequence[str]) -> str:
    """Return the path of the first of *names*; raises StackError if none is installed."""
    path = find_program(names)
    if path is None:
        raise StackError(f"{names[0]} is not installed: apt-get install {names[0]}")
    return path


def free_port(preferred: int = 0) -> int:
    """Return an unused loopback port: *preferred* if it is free.

    The port stays bound until this process ends, so the kernel gives it neither to a socket that
    asks for any port nor to a connection. A server that binds it with SO_REUSEADDR gets it.
    """
    for port in (preferred, 0):
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", port))
        except OSError:
            held.close()
            continue
        chosen = int(held.getsockname()[1])
        held.detach()  # Bound and not listening, until this process ends.
        return chosen
    raise StackError("no free port on 127.0.0.1")


# Loopback only: a proxy named in the environment must not interfere.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str, timeout_seconds: float = 10) -> bytes:
    """Return the body of *url*; raises OSError when it is refused, late or an HTTP error."""
    with _opener.open(url, timeout=timeout_seconds) as response:
        body: bytes = response.read()
        return body


def answers(url: str) -> bool:
    """Return whether *url* answers with a success."""
    try:
        get(url, timeout_seconds=2)
    except OSError:
        return False
    return True


class StackProcess:
    """A program in its own session that writes to *log*; a context manager starts and stops it.

    Stopping also reaches descendants in their own sessions, because all inherit a mark in their
    environment. If setpriv(1) exists, the program also ends when this process is killed.
    """

    ready_url: str | None = None
    ready_seconds = 20.0
    grace_seconds = 8.0

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log = name, log
        self._command = list(command)
        self._mark = uuid.uuid4().hex
        self._environment = {**os.environ, **(environment or {}), MARK: self._mark}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process id; raises StackError if it was never started."""
        if self._process is None:
            raise StackError(f"{self.name} was not started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, minus the signal number if killed; None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start it and wait until it is ready; raises StackError if that takes too long."""
        tie = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*tie, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # We handle Ctrl-C, in order.
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        url = self.ready_url
        if url is None:
            return
        done = wait_for(
            lambda: True if self.exit_code is not None or answers(url) else None, self.ready_seconds
        )
        if done is None:
            raise self.failure(f"did not become ready in {self.ready_seconds:.0f} s")
        self.check_alive()

    def check_alive(self) -> None:
        """Raise StackError when it has ended."""
        if self.exit_code is not None:
            raise self.failure(f"ended by itself with code {self.exit_code}")

    def failure(self, what: str) -> StackError:
        """Return an error that says *what* happened to it and shows the end of its log."""
        return StackError(f"{self.name} {what}; last lines of its log:\n{self.last_lines()}")

    def last_lines(self, count: int = 15) -> str:
        """Return the end of its log, indented."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(f"    {line}" for line in lines[-count:]) or "    (empty)"

    def family(self) -> list[psutil.Process]:
        """Return its running processes, descendants included, by the mark that they inherited."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(MARK) == self._mark)
        except (psutil.Error, OSError):  # Gone meanwhile, or another user's.
            return False

    def kill(self) -> None:
        """End the program with SIGKILL, as a crash would; what it started is left alone."""
        os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM to the program; after the grace time, SIGKILL to all that still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            wait_for(lambda: self.exit_code, self.grace_seconds)
        if wait_for(self._kill_family, seconds=5) is None:
            raise StackError(f"{self.name} cannot be killed: {self.family()}")
        if self._process is not None:
            self._process.wait()

    def _kill_family(self) -> bool | None:
        family = self.family()
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        return None if family else True

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.stop)
            self.start()
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
