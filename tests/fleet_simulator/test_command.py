"""`rankskew simulate` as a command: what it refuses, what it says, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from devstack.process import wait_for
from fleet_simulator.command import url_of
from fleet_simulator.faults import KINDS
from rankskew.__main__ import main
from tests.exporter.running import ROOT

Captured = pytest.CaptureFixture[str]


def test_help_lists_every_fault(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--help"])

    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert {kind.name for kind in KINDS} <= set(said.split())
    assert len(said.splitlines()) <= 45
    assert "rankskew simulate --nodes 64 --gpus 8 --fault thermal:node=7,gpu=3" in said


def test_address_can_be_scraped_from_elsewhere(capsys: Captured) -> None:
    """A fleet on every address is named after its host; a port in use is one sentence."""
    with socket.create_server(("", 0)) as everywhere, socket.create_server(("127.0.0.1", 0)) as one:
        assert url_of(everywhere) == f"http://{socket.gethostname()}:{everywhere.getsockname()[1]}"
        address = f"127.0.0.1:{one.getsockname()[1]}"
        assert url_of(one) == f"http://{address}"
        assert main(["simulate", "--listen-address", address]) == 2

    said = capsys.readouterr().err
    assert said.startswith(f"rankskew: cannot listen on {address}: ")
    assert ("choose another --listen-address" in said, said.count("\n")) == (True, 1)


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
            wait_for(
                lambda: any(tmp_path.glob("rankskew-simulate-*")) or None, seconds=30, every=0.01
            )
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
