"""A started program is awaited, and nothing of it outlives its block."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from devstack.process import StackError, StackProcess, wait_for

SLEEPER = "import time; time.sleep(600)"
# Ignores SIGTERM, and has a child in a session of its own that outlives its parent.
STUBBORN = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
print("child started", flush=True)
time.sleep(600)
"""


def runs(process: psutil.Process) -> bool:
    """Say whether *process* runs; a container's init may leave an ended orphan as a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def python(code: str, directory: Path) -> StackProcess:
    return StackProcess("the program", [sys.executable, "-c", code], directory / "log")


@pytest.mark.parametrize("is_killed", [False, True])
def test_everything_is_stopped(tmp_path: Path, is_killed: bool) -> None:
    """Neither SIGTERM ignored nor a session of its own keeps a process alive.

    After a crash of the program itself, what it had started is found and stopped.
    """
    process = python(STUBBORN, tmp_path)
    process.grace_seconds = 0.5
    with process:
        assert wait_for(lambda: "child started" in process.last_lines() or None, 20)
        family = process.family()
        assert len(family) == 2
        if is_killed:
            process.kill()
            assert process.exit_code == -signal.SIGKILL
            assert len(process.family()) == 1

    assert not any(runs(each) for each in family)


def test_nothing_survives_a_killed_demo(tmp_path: Path) -> None:
    """When the process that started it is itself killed with SIGKILL, the program ends too."""
    starter = f"""
import sys, time
from pathlib import Path
from devstack.process import StackProcess
command = [sys.executable, "-c", {SLEEPER!r}]
process = StackProcess("inner", command, Path({str(tmp_path / "log")!r}))
process.start()
print(process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        inner = psutil.Process(int(demo.stdout.readline()))
        # Until then it is still setpriv, which may not have tied itself yet.
        assert wait_for(lambda: inner.cmdline()[:1] == [sys.executable] or None, 10)
        demo.kill()

    assert wait_for(lambda: None if runs(inner) else True, 10)


def test_program_that_does_not_become_ready_is_named_and_stopped(tmp_path: Path) -> None:
    """With what it said last if it ended; it fails in time, and is not left running."""
    ended, slow = python("raise SystemExit('no such rule')", tmp_path), python(SLEEPER, tmp_path)
    ended.ready_url = slow.ready_url = "http://127.0.0.1:1/-/ready"
    slow.ready_seconds = 0.3

    with pytest.raises(StackError, match=r"the program ended by itself with code 1;(?s:.*)no such"):
        ended.start()
    with pytest.raises(StackError, match="the program did not become ready in 0 s"), slow:
        pass
    assert slow.family() == []
