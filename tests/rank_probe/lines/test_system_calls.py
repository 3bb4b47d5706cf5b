"""The call that a thread is in says what it waits for."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rank_probe.lines.system_calls import (
    BLOCKED,
    DISK,
    LOCK,
    PIPE,
    SHARED,
    SLEEP,
    Reader,
    Wait,
    wait_of_channel,
)

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the numbers of calls are this architecture's"
)


def no() -> bool:
    return False


def waits_of(script: str, *arguments: str, cwd: Path | None = None) -> Wait | None:
    """Return what a process waits for that runs *script* and blocks at its end."""
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.Popen(command, cwd=cwd)
    try:
        return until(lambda: blocked(process.pid))
    finally:
        process.kill()
        process.wait()


def blocked(pid: int) -> Wait | None:
    """Return what it waits for once that stays the same for a while."""
    call = Path(f"/proc/{pid}/syscall")
    try:
        before = call.read_bytes()
        time.sleep(0.2)
        if call.read_bytes() != before:
            return None
        return Reader(f"/proc/{pid}").wait(before, no)
    except PermissionError:
        pytest.skip("this user may not see what processes wait for")


def until(found: Callable[[], Wait | None]) -> Wait:
    deadline = time.monotonic() + 20
    while (wait := found()) is None:
        assert time.monotonic() < deadline
    return wait


def test_running_thread_waits_for_nothing() -> None:
    """And one that may not be read is not said to sleep."""
    assert Reader().wait(b"running\n", no) is None
    assert wait_of_channel("0", is_in_disk_sleep=False) is None


def test_lock_of_one_process_is_told_from_one_that_processes_share() -> None:
    """A worker that waits for the latter waits for work."""
    own = "import threading as t; l = t.Lock(); l.acquire(); l.acquire()"
    shared = "import multiprocessing as t; l = t.Lock(); l.acquire(); l.acquire()"

    assert waits_of(own) == Wait(LOCK)
    assert waits_of(shared) == Wait(LOCK, link=SHARED)


def test_pipe_is_told_with_its_link() -> None:
    """So that it can be found in another process, also if it is polled."""
    read = "import os; os.read(os.pipe()[0], 1)"
    poll = "import multiprocessing as m; ends = m.Pipe(duplex=False); ends[0].poll(60)"
    for script in (read, poll):
        found = waits_of(script)
        assert found is not None
        assert found.state == PIPE
        assert found.link.startswith("pipe:[")


def test_sleep_is_a_sleep() -> None:
    """In another process too."""
    assert waits_of("import time; time.sleep(600)") == Wait(SLEEP)


def test_path_is_that_of_the_process(tmp_path: Path) -> None:
    """A relative one is relative to where it is, which may be elsewhere than here."""
    os.mkfifo(tmp_path / "file")  # Opening it waits for the other end.
    relative = waits_of("open('file')", cwd=tmp_path)
    absolute = waits_of("import sys; open(sys.argv[1])", str(tmp_path / "file"))

    assert relative == absolute
    assert relative is not None
    assert relative.state == DISK
    assert relative.mount.endswith(")")


def test_descriptor_that_cannot_be_read_may_be_a_queue() -> None:
    """A worker that polls it may wait for work."""
    assert Reader().wait(b"7 0x0 0x1 0x1388 0x0 0x0 0x0 0x7ffc 0x7f01\n", no) == Wait(
        BLOCKED, link=SHARED
    )


def test_close_that_waits_writes_a_file() -> None:
    """As on NFS; which one cannot be seen any more."""
    assert Reader().wait(b"3 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffc 0x7f01\n", no) == Wait(DISK)
