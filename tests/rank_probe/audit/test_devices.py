"""The GPUs of NVML, read through pynvml from a library that needs no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rank_probe.audit.devices import device_files
from rank_probe.audit.facts import NodeMounts
from tests import nvmlstub

READS = (
    "import json; from dataclasses import asdict; from rank_probe.audit.devices import read_gpus; "
    "gpus, problem = read_gpus(); print(json.dumps([[asdict(gpu) for gpu in gpus], problem]))"
)
WITHOUT_PYNVML = "import sys; sys.modules['pynvml'] = None; "


def read(library: Path, scenario: Path, said: str, before: str = "") -> tuple[Any, str]:
    """Return the GPUs and the problem that a process finds while the stub plays what is *said*."""
    scenario.write_text(said)
    done = subprocess.run(
        [sys.executable, "-c", before + READS],
        env=os.environ | nvmlstub.environment(library, 8, scenario),
        capture_output=True,
        text=True,
        check=True,
    )
    gpus, problem = json.loads(done.stdout)
    return gpus, problem


def test_gpus_have_their_place(library: Path, tmp_path: Path) -> None:
    """Two sockets of four."""
    gpus, problem = read(library, tmp_path / "scenario", "")

    assert problem == ""
    assert [gpu["index"] for gpu in gpus] == list(range(8))
    assert gpus[5]["cpus"] == list(range(32, 64))


def test_what_a_driver_lacks_is_left_out(library: Path, tmp_path: Path) -> None:
    """A GPU without a known place is still a GPU."""
    gpus, problem = read(library, tmp_path / "scenario", "nvmlDeviceGetCpuAffinity * 3\n")

    assert problem == ""
    assert [gpu["cpus"] for gpu in gpus] == [[]] * 8


@pytest.mark.parametrize(
    ("said", "before", "problem"),
    [
        ("nvmlInitWithFlags * 9\n", "", "NVML does not start: "),
        ("nvmlDeviceGetUUID 3 15\n", "", "NVML does not answer: GPU is lost"),
        ("nvmlDeviceGetCount_v2 -1 =0\n", "", "NVML shows no GPU"),
        ("", WITHOUT_PYNVML, "pynvml is not installed (pip install nvidia-ml-py)"),
    ],
)
def test_host_without_answer_says_why(
    library: Path, tmp_path: Path, said: str, before: str, problem: str
) -> None:
    """A sentence instead of the GPUs."""
    gpus, why = read(library, tmp_path / "scenario", said, before)

    assert gpus == []
    assert why.startswith(problem)


def test_device_files_count_gpus_only(tmp_path: Path) -> None:
    """The other files of the driver are no GPUs."""
    for name in ("nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()

    assert device_files(NodeMounts(devices=tmp_path)) == 2
    assert device_files(NodeMounts(devices=tmp_path / "absent")) == 0
