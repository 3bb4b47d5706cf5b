"""The live view on a real terminal: it ends cleanly, and goes on when a source fails."""

import fcntl
import io
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Final

import pytest
from rich.console import Console

from rankskew.client.fetch import TIMEOUT_SECONDS
from rankskew.top.model import FleetStatus, JobStatus
from rankskew.top.screen import frame, kept, show
from tests.exporter.running import PATIENCE_SECONDS, ROOT
from tests.rankskew.client.servers import Answer, exporter_of, json_answer, serving
from tests.rankskew.top.documents import live, straggler

CONTROL_C: Final = b"\x03"
LEAVE_SCREEN: Final = "\x1b[?1049l"
FLEET: Final = FleetStatus(
    "http://n", [JobStatus("llama", state="healthy")], timestamp_seconds=1000.0
)


@dataclass
class Terminal:
    """A terminal of 24 lines and 100 columns in which `rankskew top` runs."""

    process: "subprocess.Popen[bytes]"
    keyboard: int
    shown: str = ""

    def wait_for(self, words: str) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while words not in self.shown and time.monotonic() < until:
            time.sleep(0.02)
        assert words in self.shown

    def read(self) -> None:
        with suppress(OSError):  # EIO: the process has closed its end.
            while said := os.read(self.keyboard, 65536):
                text = said.decode(errors="replace")
                self.shown += re.sub(r"\x1b\[[0-9;]*m", "", text)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    keyboard, screen = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "rankskew", "top", *arguments],
        cwd=ROOT,
        stdin=screen,
        stdout=screen,
        stderr=screen,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(
            0, termios.TIOCSCTTY, 0
        ),  # Ctrl-C needs a terminal of its own
    )
    os.close(screen)
    opened = Terminal(process, keyboard)
    reader = Thread(target=opened.read)
    reader.start()
    try:
        yield opened
    finally:
        process.kill()
        process.wait()
        reader.join()
        os.close(keyboard)


@pytest.mark.parametrize("key", [CONTROL_C, signal.SIGTERM])
def test_control_c_and_sigterm_end_it(key: bytes | signal.Signals) -> None:
    """Both end with status 0 and give the terminal back as it was."""
    with exporter_of(live(straggler())) as url, terminal("--exporter", url) as opened:
        opened.wait_for("Rank 2 is slow loading data")
        if isinstance(key, bytes):
            os.write(opened.keyboard, key)
        else:
            opened.process.send_signal(key)

        assert opened.process.wait(PATIENCE_SECONDS) == 0
        opened.wait_for(LEAVE_SCREEN)
    assert "Traceback" not in opened.shown


def test_it_goes_on_while_an_exporter_is_away() -> None:
    """A failure is a line above the last view; when the exporter is back, the line goes."""
    answers: list[Answer] = [json_answer(live(straggler()))]
    with (
        serving(lambda path, form: answers[-1]) as url,
        terminal("--exporter", url, "--interval", "100ms") as opened,
    ):
        opened.wait_for("Rank 2 is slow loading data")
        answers.append((500, "text/plain", b""))
        opened.wait_for("answers 500 Internal Server Error. Trying again.")
        opened.shown = ""
        answers.append(json_answer(live(straggler(sentence="It is back."))))
        opened.wait_for("It is back.")
        os.write(opened.keyboard, CONTROL_C)

        assert opened.process.wait(PATIENCE_SECONDS) == 0


def test_it_does_not_wait_for_a_server_that_hangs() -> None:
    """Ctrl-C ends at once, also before the first answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with terminal("--exporter", f"http://127.0.0.1:{port}") as opened:
            opened.wait_for("rankskew top")
            os.write(opened.keyboard, CONTROL_C)
            pressed = time.monotonic()

            assert opened.process.wait(PATIENCE_SECONDS) == 0
            assert time.monotonic() - pressed < TIMEOUT_SECONDS


def test_what_was_seen_last_is_kept() -> None:
    """A failed read keeps the jobs; a successful one without jobs does not."""
    failed = FleetStatus("http://n", troubles=["It does not answer."])

    assert kept(failed, FLEET).jobs == FLEET.jobs
    assert kept(failed, FLEET).troubles == failed.troubles
    assert kept(failed, None) is failed
    assert kept(FleetStatus("http://n"), FLEET).jobs == ()


def test_view_fits_the_height_and_tells_its_age() -> None:
    """The most urgent jobs are shown, the others counted; nobody takes an old view for now."""
    jobs = [JobStatus(f"job{number}", state="healthy") for number in range(100)]
    fleet = FleetStatus("x", jobs, ["One is away."], timestamp_seconds=1000.0)
    out = io.StringIO()
    Console(file=out, width=100).print(frame(fleet, 24, 1060.0))

    assert len(out.getvalue().splitlines()) <= 24
    for said in ("and 87 more jobs", "seen 60 s ago", "One is away. Trying again."):
        assert said in out.getvalue()


def test_fault_of_ours_ends_it() -> None:
    """It must not leave an old view on the screen."""

    def broken() -> FleetStatus:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        show(broken, 1.0)
