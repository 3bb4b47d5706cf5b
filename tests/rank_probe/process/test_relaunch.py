"""Tests of scripts whose framework runs them again for the other ranks."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rank_probe.guest.guard import failures
from rank_probe.process import relaunch
from tests.rank_probe.process.lightning_script import BATCHES
from tests.rank_probe.sink import listening

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("lightning_script.py")
BUILDS = """
import sys
def _basic_subprocess_cmd():
    return [sys.executable, "/job/train.py", "--lr", "1"]
def _hydra_subprocess_cmd(local_rank):
    return [sys.executable, "-m", "pkg.train", f"hydra.job.name={local_rank}"], "/job"
"""
IMPORTS = "from {} import _basic_subprocess_cmd, _hydra_subprocess_cmd"


@pytest.fixture
def lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two Lightning packages of this test's own; torch's real ones are not imported for it."""
    monkeypatch.syspath_prepend(tmp_path)
    names = [name.replace("lightning", "thunder") for name in relaunch.MODULES]
    monkeypatch.setattr(relaunch, "MODULES", names)
    yield tmp_path
    for name in [name for name in sys.modules if "thunder" in name]:
        del sys.modules[name]


def write(folder: Path, module: str, text: str) -> None:
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.mark.parametrize("index", [0, 1])
def test_commands_gain_the_probe(lightning: Path, index: int) -> None:
    """Of both packages, with hydra or without; once, though one module imports it from another."""
    builds, imports = relaunch.MODULES[index], relaunch.MODULES[index + 2]
    write(lightning, builds, BUILDS)
    write(lightning, imports, IMPORTS.format(builds))
    patches = relaunch.attach()
    module = importlib.import_module(imports)
    commands = module._basic_subprocess_cmd(), module._hydra_subprocess_cmd(local_rank=1)
    patches.undo()
    probe = [sys.executable, "-m", "rank_probe"]

    assert commands == (
        [*probe, "/job/train.py", "--lr", "1"],
        ([*probe, "-m", "pkg.train", "hydra.job.name=1"], "/job"),
    )
    assert sys.modules[builds]._basic_subprocess_cmd() == [sys.executable, *commands[0][3:]]


@pytest.mark.parametrize("text", ["", "def _basic_subprocess_cmd(): return ['srun', 'train.py']"])
def test_version_that_does_otherwise_is_left_alone(lightning: Path, text: str) -> None:
    """Without these functions, or with commands of another kind, nothing changes."""
    before = failures.count
    write(lightning, relaunch.MODULES[0], text)
    patches = relaunch.attach()
    module = importlib.import_module(relaunch.MODULES[0])
    command = module._basic_subprocess_cmd() if text else ["srun", "train.py"]
    patches.undo()

    assert command == ["srun", "train.py"]
    assert failures.count == before


def test_every_rank_of_lightnings_own_launcher_is_timed(tmp_path: Path) -> None:
    """`python -m rank_probe train.py` without torchrun: the other ranks are under the probe too."""
    with listening(tmp_path / "s") as sink:
        done = subprocess.run(
            [sys.executable, "-m", "rank_probe", str(SCRIPT), "--lr"],
            cwd=tmp_path,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "RANKSKEW_EXPORTER": sink.endpoint, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    ranks, said = sink.last(), [line for line in done.stdout.splitlines() if "--lr" in line]

    assert done.returncode == 0, done.stderr
    assert sorted(said) == ["rank 0 ['--lr']", "rank 1 ['--lr']"]
    assert [(each["steps"], each["finished"]) for each in ranks.values()] == [(BATCHES, True)] * 2
    assert {(each["rank"], each["world_size"]) for each in sink.snapshots} == {(0, 2), (1, 2)}
