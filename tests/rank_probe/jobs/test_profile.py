"""Traces of real ranks on the operator's order, through a real exporter, and their comparison."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankskew.__main__ import main
from tests.exporter.running import running_exporter, wait_until

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[3]
# Ranks with ten steps or more.
STEPS = re.compile(r"\nrankskew_steps_total\{.*\} \d\d+\.0")
JOB = "tests/rank_probe/jobs/profile_job.py"


def test_late_rank_and_its_peer_write_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four gloo ranks; both traces have the same steps, and the planted product is named."""
    ending, traces = tmp_path / "end", tmp_path / "traces"
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "4", "--rdzv-backend", "c10d"]
    job = ["--rdzv-endpoint", "localhost:0", "-m", "rank_probe", JOB, str(ending), "0.01"]
    with running_exporter(tmp_path / "e.sock") as exporter:
        environment = {
            "RANKSKEW_EXPORTER": f"unix:{exporter.socket_path}",
            "RANKSKEW_JOB_ID": "profiled",
            "RANK_PROBE_TRACE": str(traces),
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            [sys.executable, *launcher, *job], cwd=ROOT, env=os.environ | environment
        )
        try:
            wait_until(lambda: len(STEPS.findall(exporter.metrics())) == 4)
            where = f"--exporter=unix:{exporter.operator_path}"
            order = ["control", "--profile", "profiled", "2", "--steps", "4", where]
            assert main([*order, "--json"]) == 0
            said = json.loads(capsys.readouterr().out)
            assert main(order) == 0
        finally:
            ending.touch()
            process.wait(60)

    assert process.returncode == 0
    assert "aten::mm takes " in said["sentence"]
    assert "ms on its peer: 2 calls, not 1." in said["sentence"]
    assert sorted(said["profiles"]) == ["1", "2"]
    start = said["start"]
    for rank in ("1", "2"):
        path = traces / f"profiled-0-{rank}-step{start}.json"
        assert said["profiles"][rank] == {"start": str(start), "path": str(path), "problem": ""}
        assert f"rankskew: 4 steps from step {start} on, rank {rank}" in path.read_text()
    printed = capsys.readouterr().out
    assert f"\nrank 2: {traces}/profiled-0-2-step" in printed
    assert "\naten::mm takes " in printed

    paths = [said["profiles"][rank]["path"] for rank in ("2", "1")]
    assert main(["diagnose", "--profiles", *paths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sentence"] == said["sentence"]
