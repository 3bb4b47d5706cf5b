"""With --log.format=json, every record of the exporter is a JSON object."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from tests.exporter.running import PATIENCE_SECONDS, ROOT, running_exporter, wait_until


def test_every_record_is_an_object(tmp_path: Path) -> None:
    """A log shipper needs no rule for ours; what a crashing child prints passes as it is."""
    with running_exporter(tmp_path / "e.sock", "--log.format=json", "--path.state=") as exporter:
        parent = psutil.Process(exporter.process.pid)
        wait_until(lambda: exporter.get("/-/ready")[0] == 200)
        workers(parent)[0].send_signal(signal.SIGSEGV)
        wait_until(lambda: any("Segmentation" in line for line in exporter.log))
        exporter.terminate()

    crash = next(number for number, line in enumerate(exporter.log) if "Segmentation" in line)
    said = [json.loads(line) for line in (*exporter.log[:crash], exporter.log[-1])]
    assert all(list(each)[:4] == ["time", "level", "message", "logger"] for each in said)
    assert said[-1]["message"] == "stopped"


def workers(parent: psutil.Process) -> list[psutil.Process]:
    """Return the NVML worker; it handles crashes from before its first sample."""
    return [each for each in parent.children() if "exporter.nvml.worker" in each.cmdline()]


def test_start_that_fails_is_an_object_too(tmp_path: Path) -> None:
    """Whatever keeps the exporter from starting is found where the rest of its log is."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "rankskew", "exporter", "--log.format=json"),
                *("--ingest.socket=", "--operator.socket=", f"--web.listen-address={address}"),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, json.loads(line)["level"]) == (2, "critical")
    assert json.loads(line)["message"].startswith(f"cannot listen on {address}: ")
