"""`make demo`: what it refuses, and that it leaves nothing running."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from devstack.process import MARK, wait_for
from tests.devstack.test_process import runs


@contextmanager
def running_demo(**environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demo as make does, and kill it in the end whatever happens."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "demo"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield demo
    finally:
        demo.kill()
        demo.communicate()


def started_by(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the demo's programs and what they started themselves."""
    children = psutil.Process(demo.pid).children(recursive=True)
    return [child for child in children if MARK in child.environ()]


def test_unknown_fault_is_one_line() -> None:
    """A wrong DEMO_FAULT exits 2 with one line that says what it may be."""
    with running_demo(DEMO_FAULT="gpu") as demo:
        said, _ = demo.communicate(timeout=60)

    assert demo.returncode == 2
    assert said == "DEMO_FAULT=gpu is not one of data, forward, backward, optimizer, none\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing(number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in the middle ends every process of the demo, and removes its files."""
    # Not tmp_path: it may be too long for a socket's path.
    with (
        tempfile.TemporaryDirectory() as folder,
        running_demo(DEMO_ONCE="1", TMPDIR=folder) as demo,
    ):
        assert demo.stdout is not None
        assert any(line.split()[:1] == ["training"] for line in demo.stdout)
        # The exporter, Prometheus, Alertmanager, torchrun, and at least one rank of it.
        assert wait_for(lambda: len(started_by(demo)) > 4 or None, 60)
        programs = started_by(demo)
        demo.send_signal(number)
        said, _ = demo.communicate(timeout=60)
        left = list(Path(folder).iterdir())

    assert demo.returncode == 128 + number
    assert said.endswith("Stopped; nothing is left running.\n")
    assert not any(runs(program) for program in programs)
    assert left == []
