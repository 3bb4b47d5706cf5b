"""One run of the NVML worker, from its parent's view: it writes lines, and can be ended."""

import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import exporter
from exporter.nvml.sample import StuckCall

# The directory of this package, so that the worker runs the same version whatever the cwd is.
PACKAGE_ROOT: Final = Path(exporter.__file__).parents[1]
# Exit status of a worker that asks to be replaced, without any failure.
SUPERSEDED_STATUS: Final = 3
# The worker's time to shut NVML down, and the kernel's to end it after a kill.
END_SECONDS: Final = 1.5
# The driver waits for up to 45 s for a GPU's firmware, perhaps more than once in a call.
LONGEST_POLL_SECONDS: Final = 120.0


class WorkerProcess:
    """A running worker; closing its standard input ends it.

    What it and the driver's library print on standard error goes to ours.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        """Start it; raise OSError if that fails."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "exporter.nvml.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=PACKAGE_ROOT,
            env=dict(environment),
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        self._half_line = b""
        self.pid = self._process.pid

    def read_lines(self, timeout_seconds: float, wake: int) -> list[bytes] | None:
        """Wait for output and return the complete lines in it; None once it has ended.

        Return an empty list after *timeout_seconds*, or as soon as the file *wake* is readable.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(timeout_seconds)}
        if self._stdout not in ready:
            return []
        chunk = os.read(self._stdout.fileno(), 1 << 16)
        *lines, self._half_line = (self._half_line + chunk).split(b"\n")
        return lines if chunk else None

    def end(self, seconds: float = END_SECONDS) -> int | None:
        """Ask it to end, kill it after *seconds*; return its status, None if it still runs."""
        self._stdin.close()
        self._stdout.close()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def is_running(self) -> bool:
        """Whether the process still exists."""
        return self._process.poll() is None

    def is_in_kernel(self, call: StuckCall) -> bool:
        """Whether a call is where no signal ends it, not even SIGKILL.

        It sleeps there (state D), or polls firmware that does not answer (state R). A thread that
        runs for longer than LONGEST_POLL_SECONDS is not polling firmware.
        """
        try:
            stat = Path(f"/proc/{self.pid}/task/{call.thread_id}/stat").read_text()
        except OSError:
            return False  # It has ended.
        state = stat.rpartition(")")[2].split()[0]
        return state == "D" or (state == "R" and call.seconds < LONGEST_POLL_SECONDS)
