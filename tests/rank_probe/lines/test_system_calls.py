"""The call that a thread is in says what it waits for."""

import os
import platform
import subprocess
import sys
import time
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
    mounts,
    wait_of_channel,
)

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the numbers of calls are this architecture's"
)


WATCHES = "import os, select; e = select.epoll(); one, two = os.pipe()[0], os.pipe()[0];"


def no() -> bool:
    return False


def waits_of(script: str, *arguments: str, cwd: Path | None = None) -> Wait:
    """Return what a process waits for that runs *script* and blocks at its end."""
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=cwd)
    deadline = time.monotonic() + 20
    try:
        while (wait := blocked(process.pid)) is None:
            assert time.monotonic() < deadline
        return wait
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


def test_running_thread_waits_for_nothing() -> None:
    """And one that may not be read is not said to sleep."""
    assert Reader().wait(b"running\n", no) is None
    assert wait_of_channel("0", is_in_disk_sleep=False) is None


@pytest.mark.parametrize(
    ("script", "state", "link"),
    [
        ("import threading as t; l = t.Lock(); l.acquire(); l.acquire()", LOCK, ""),
        # A worker that waits for a lock that processes share waits for work.
        ("import multiprocessing as t; l = t.Lock(); l.acquire(); l.acquire()", LOCK, SHARED),
        # The link finds it in another process, also if it is polled.
        ("import os; os.read(os.pipe()[0], 1)", PIPE, "pipe:["),
        ("import multiprocessing as m; a = m.Pipe(duplex=False); a[0].poll(60)", PIPE, "pipe:["),
        (f"{WATCHES} e.register(one); e.register(two); e.poll()", PIPE, "pipe:["),
        (f"{WATCHES} e.register(one); e.poll()", SLEEP, ""),
        ("import time; time.sleep(600)", SLEEP, ""),
    ],
)
def test_wait_of_another_process_is_told_with_its_link(script: str, state: str, link: str) -> None:
    """Locks, pipes and sleep."""
    found = waits_of(script)

    assert found.state == state
    assert found.link.startswith(link)
    assert bool(found.link) == bool(link)


def test_path_is_that_of_the_process(tmp_path: Path) -> None:
    """A relative one is relative to where it is, which may be elsewhere than here."""
    os.mkfifo(tmp_path / "file")  # Opening it waits for the other end.
    relative = waits_of("open('file')", cwd=tmp_path)
    absolute = waits_of("import sys; open(sys.argv[1])", str(tmp_path / "file"))

    assert relative == absolute
    assert relative.state == DISK
    assert relative.mount.endswith(")")


def test_of_a_hundred_thousand_mounts_few_are_kept(tmp_path: Path) -> None:
    """Any user may make so many, and the exporter keeps those of each worker."""
    line = "36 35 98:0 / /mnt/{} rw,noatime shared:1 - tmpfs {} rw\n"
    (tmp_path / "mountinfo").write_text("".join(line.format(n, "x" * 99) for n in range(100_000)))

    found = mounts(f"{tmp_path}/mountinfo")
    assert ("/mnt/7", "/mnt/7 (tmpfs)") in found
    assert len(found) < 5_000


@pytest.mark.parametrize(
    ("call", "wait"),
    [
        # A worker that polls what cannot be read may wait for work.
        (b"7 0x0 0x1 0x1388 0x0 0x0 0x0 0x7ffc 0x7f01\n", Wait(BLOCKED, link=SHARED)),
        # A close that waits writes a file, as on NFS; which one cannot be seen any more.
        (b"3 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffc 0x7f01\n", Wait(DISK)),
    ],
)
def test_call_alone_says_what_it_waits_for(call: bytes, wait: Wait) -> None:
    """Where the descriptor or the memory cannot be read."""
    assert Reader().wait(call, no) == wait
