import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.nvml_costs import NO_DRIVER, SAME, compared
from exporter.nvml.sample import GpuSample
from tests import nvmlstub

ROOT = Path(__file__).parents[2]
SAMPLE = GpuSample(0, up=True, memory_total_bytes=80 << 30, power_milliwatts=650_500)


def run(environment: dict[str, str], code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys; from benchmarks import nvml_costs, report; {code}"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_machine_without_a_driver_is_told(tmp_path: Path) -> None:
    """Without NVIDIA's library the benchmark says so in one line and exits 2."""
    ended = run({"LD_LIBRARY_PATH": str(tmp_path)}, "sys.exit(nvml_costs.main())")

    assert ended.returncode == 2
    assert ended.stderr.startswith(NO_DRIVER)


def test_each_call_is_timed(tmp_path: Path) -> None:
    """On the stub the calls that block for a known time are seen to take that time."""
    slow = tmp_path / "scenario.txt"
    slow.write_text("nvmlGpmQueryDeviceSupport * 3\nfield_197 * 3\nfield_198 * 3\n")
    library = nvmlstub.build(tmp_path)
    ended = run(
        {**nvmlstub.environment(library, 2, slow, pcie_milliseconds=200), "PATH": str(tmp_path)},
        f"from pathlib import Path; report.RESULTS = Path({str(tmp_path)!r}); "
        "sys.exit(nvml_costs.main(rounds=3, pause_seconds=0.0))",
    )
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "nvml_costs.json").read_text())["rows"]
    by_call = {row["call"]: row for row in rows}

    assert 200_000 <= by_call["nvmlDeviceGetPcieThroughput"]["median us"] < 600_000
    # Both directions first, then they take turns: four calls in three rounds.
    assert by_call["nvmlDeviceGetPcieThroughput"]["calls a second and GPU"] * 3 == 4
    assert by_call["nvmlDeviceGetPowerUsage"]["calls a second and GPU"] == 1
    assert rows[0]["call"] == "nvmlDeviceGetPcieThroughput"


@pytest.mark.parametrize(
    ("sample", "agree"),
    [
        (SAMPLE, True),
        (replace(SAMPLE, power_milliwatts=720_000), False),
        (replace(SAMPLE, memory_total_bytes=None), False),
    ],
)
def test_disagreement_with_nvidia_smi_is_seen(sample: GpuSample, agree: bool) -> None:
    """A reading that nvidia-smi has and we have not, or another one, does not agree."""
    told = {"memory.total": "81920", "power.draw": "655.10"}
    rows = list(compared(sample, [told.get(name, "[N/A]") for name, _, _ in SAME]))

    assert [row["reading"] for row in rows if row["ours"] is not None or row["nvidia-smi"]] == [
        "memory.total",
        "power.draw",
    ]
    assert all(row["agree"] for row in rows) is agree
