"""`rankskew act` as a command: from Alertmanager's webhook to a drained node, and to its end."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3

from fleet_simulator.stack.process import answers, free_port, wait_for
from rankskew.__main__ import main
from tests.exporter.running import ROOT
from tests.rankskew.act.fake_site import FakeSite
from tests.rankskew.act.slurm_site import SlurmSite

TOKEN = "s3cret"


class Acting:
    """A running `rankskew act` with a log in *directory*."""

    def __init__(self, directory: Path, prometheus: str, *more: str) -> None:
        (directory / "token").write_text(TOKEN)
        (directory / "token").chmod(0o600)
        self.audit, address = directory / "act.jsonl", f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self.options = [f"--token-file={directory}/token", f"--audit={self.audit}"]
        self.options += [f"--listen-address={address}", f"--prometheus={prometheus}", *more]

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "rankskew", "act", *self.options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
            assert wait_for(lambda: answers(f"{self.url}/-/healthy") or None, 30)
            try:
                yield process
            finally:
                process.kill()

    def claim(self, instance: str) -> int:
        labels = {"alertname": "RankskewSlowNode", "instance": instance}
        body = {"version": "4", "alerts": [{"status": "firing", "labels": labels}]}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return urllib3.request(
            "POST", f"{self.url}/alertmanager", body=json.dumps(body), headers=headers
        ).status

    def wait_for(self, event: str, seconds: float = 30.0) -> dict[str, Any]:
        """Return the first line of the log that is *event*, if it comes in *seconds*."""

        def found() -> dict[str, Any] | None:
            lines = self.audit.read_text().splitlines() if self.audit.exists() else []
            return next((each for each in map(json.loads, lines) if each["event"] == event), None)

        line = wait_for(found, seconds)
        assert line is not None
        return line


@pytest.fixture
def site() -> Iterator[str]:
    """A Prometheus in which n1, one of twenty nodes, is late for ten hours until tomorrow."""
    found = FakeSite(now=time.time())
    for number in range(20):
        found.node(f"n{number}")
    found.late((found.now - 36_000, found.now + 86_400))
    with found.serve() as url:
        yield url


@pytest.mark.parametrize("for_real", [True, False])
def test_claim_drains_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str, for_real: bool
) -> None:
    """For real the node is drained, else it is only said; SIGTERM ends it, as asked."""
    slurm = SlurmSite(tmp_path, monkeypatch)
    more = ["--slurm", "--most-percent=100", *["--for-real"] * for_real]
    acting = Acting(tmp_path, site, *more)
    with acting.running() as process:
        assert acting.claim("n1:9917") == 200
        line = acting.wait_for("hold")
        drained = wait_for(lambda: "DRAIN" in slurm.read()["nodes"]["n1"]["state"] or None, 3)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=10)

    assert process.returncode == 0
    assert bool(drained) == line["for_real"] == for_real
    assert slurm.read()["nodes"]["n2"]["state"] == "MIXED"
    assert (line["target"], line["name"], line["cause"]) == ("slurm", "n1", "slow_device")
    how = "for real" if for_real else "as a dry run"
    assert said.splitlines()[0].endswith(f"; acts on slurm, {how}")
    assert "slurm: hold n1" in said


def test_what_stops_the_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No target, no service account, no token of a target, no URL: before anything is done."""
    acting = Acting(tmp_path, "http://127.0.0.1:1")
    monkeypatch.setenv("PATH", "/nowhere")
    for more, problem in [
        ([], "say where it acts: --slurm, --kubernetes or --webhook URL"),
        (["--slurm"], "--slurm: cannot run sinfo: No such file or directory."),
        (["--kubernetes.taint", "--slurm"], "--kubernetes.taint needs --kubernetes"),
        (["--kubernetes"], "cannot read /var/run/secrets/kubernetes.io/serviceaccount/token"),
        (["--webhook", "ftp://x"], "'ftp://x' is not a URL"),
        (["--webhook", "x", "--target.http.config.file", "/nowhere"], "cannot read /nowhere"),
        (["--webhook", "x", "--listen-address", "9916"], "--listen-address: '9916' is not host"),
    ]:
        assert main(["act", *acting.options, *more]) in (1, 2)
        said = capsys.readouterr().err
        assert problem in said
        assert said.count("\n") == 1
