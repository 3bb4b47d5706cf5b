"""Jobs and faults are where `rankskew simulate` was asked to put them, and their reports add up."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from devstack.process import wait_for
from exporter.errors import UsageError
from fleet_simulator.faults import parse
from fleet_simulator.plan import equal_jobs
from tests.exporter.running import ROOT


@pytest.mark.parametrize(
    ("jobs", "fault", "complaint"),
    [
        (3, "loader", "2 nodes cannot be divided among 3 jobs: choose a divisor"),
        (1, "pcie:node=2", "pcie: there is no GPU 0 on node 2; nodes are 0 to 1"),
        (1, "pcie:gpu=4", "pcie: there is no GPU 4 on node 0; nodes are 0 to 1"),
        (1, "melted:node=1", "there is no fault 'melted'; choose one of loader, "),
        (1, "loader:node=x", "expected KIND:node=I,gpu=J,after=30s, not 'node=x'"),
        (1, "loader:rank=3", "expected KIND:node=I,gpu=J,after=30s, not 'rank=3'"),
        (1, "loader:after=soon", "loader:after=soon: 'soon' is not a duration"),
    ],
)
def test_impossible_fleet_is_refused_in_one_sentence(jobs: int, fault: str, complaint: str) -> None:
    """The answer names what was wrong: a fault that is not there would have no effect."""
    with pytest.raises(UsageError) as refused:
        equal_jobs(2, 4, jobs, [parse(fault)])

    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("number", "nodes"), [(signal.SIGINT, 1), (signal.SIGTERM, 1000)], ids=["serving", "preparing"]
)
def test_end_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, nodes: int) -> None:
    """Ctrl-C, or a stop by a service manager, is a clean end: no traceback and no files.

    Also of the preparations: a large fleet takes seconds to begin.
    """
    command = [sys.executable, "-m", "rankskew", "simulate", "--listen-address", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--nodes", str(nodes), "--gpus", "1"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            # Python itself writes and deletes a file there first, to see whether it can.
            folder = "rankskew-simulate-*"
            assert wait_for(lambda: any(tmp_path.glob(folder)) or None, 30, every=0.01)
            if nodes == 1:
                assert process.stdout is not None
                said, _, url = process.stdout.readline().strip().rpartition(" ")
                assert said.startswith("1 job with 1 rank on 1 node, all of them simulated")
                with urllib.request.urlopen(f"{url}-/ready") as answer:
                    assert answer.status == 200
            process.send_signal(number)
            _, complaint = process.communicate(timeout=30)
        finally:
            process.kill()

    assert (process.returncode, complaint) == (0, "")
    assert list(tmp_path.iterdir()) == []
