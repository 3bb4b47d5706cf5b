"""Tests of the processes that a script or its framework starts: ranks, helpers, itself again."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import pytest

from rank_probe.guest.guard import failures
from rank_probe.process import children, relaunch
from tests.rank_probe.process.children_job import STEPS
from tests.rank_probe.sink import listening

pytestmark = pytest.mark.jobs

# Each way to start processes once in the tests of every change; all with all of them in the night.
NIGHTLY = pytest.mark.nightly

JOB = Path(__file__).with_name("children_job.py")
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "1",
}


@dataclass
class Job:
    """How a job ended, and all that its processes pushed."""

    output: str
    errors: str
    snapshots: list[dict[str, Any]]

    def last(self) -> dict[int, dict[str, Any]]:
        """Return the last snapshot of each process, by its PID."""
        return {snapshot["pid"]: snapshot for snapshot in self.snapshots}

    def ranks(self) -> list[dict[str, Any]]:
        """Return the last snapshot of each process, by rank."""
        return sorted(self.last().values(), key=lambda snapshot: int(snapshot["rank"]))

    @property
    def parent(self) -> int:
        """The PID of the script's own process."""
        return int(self.output.split()[-1])


def run(
    folder: Path, *arguments: str, bare: bool = False, environment: dict[str, str] | None = None
) -> Job:
    """Run the job with *arguments*, under the probe unless *bare*; it must end well."""
    known = {name: value for name, value in os.environ.items() if name not in TORCHRUN}
    with listening(folder / "s") as sink:
        own = {"OMP_NUM_THREADS": "1", "RANKSKEW_EXPORTER": sink.endpoint}
        done = subprocess.run(
            [sys.executable, *([] if bare else ["-m", "rank_probe"]), str(JOB), *arguments],
            cwd=folder,
            env=known | own | (environment or {}),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return Job(done.stdout, done.stderr, sink.snapshots)


def assert_both_ranks(job: Job) -> None:
    assert [(each["rank"], each["world_size"]) for each in job.ranks()] == [(0, 2), (1, 2)]
    for each in job.ranks():
        assert each["steps"] == STEPS
        assert each["probe_errors"] == 0
        assert {"data", "forward", "backward", "optimizer"} <= set(each["stage_seconds"])
    assert job.parent not in job.last()
    assert {(each["rank"], each["world_size"]) for each in job.snapshots} == {(0, 2), (1, 2)}


def test_task_of_slurm_may_start_several_ranks(tmp_path: Path) -> None:
    """torch.multiprocessing's children are ranks: the group names them, as SLURM cannot."""
    job = run(tmp_path, "--method", "spawn", "--by", "torch", environment=SLURM)

    assert_both_ranks(job)
    assert {each["job_id"] for each in job.snapshots} == {"7"}
    assert [each["rank_info"]["local_rank"] for each in job.ranks()] == ["0", "1"]
    assert all(each["finished"] for each in job.ranks())
    assert "rendezvous" in {each["event"] for each in job.ranks()[0]["lifecycle_events"]}


@pytest.mark.parametrize(
    ("method", "by", "end", "codes"),
    [
        ("spawn", "subclass", "raise", "[0, 1]"),
        pytest.param("fork", "torch", "raise", "[0, 1]", marks=NIGHTLY),
        pytest.param("forkserver", "process", "exit", "[0, 3]", marks=NIGHTLY),
    ],
)
def test_only_a_clean_end_of_a_child_marks_its_rank_finished(
    tmp_path: Path, method: str, by: str, end: str, codes: str
) -> None:
    """A rank that raises or exits with a status goes silent, and its exit code is its own."""
    job = run(tmp_path, "--method", method, "--by", by, "--end", end)

    assert job.output.startswith(codes)
    assert_both_ranks(job)
    assert [each["finished"] for each in job.ranks()] == [True, False]


@pytest.mark.parametrize(
    ("method", "started"),
    [
        pytest.param("spawn", "parent", marks=NIGHTLY),
        pytest.param("fork", "parent", marks=NIGHTLY),
        ("fork", "target"),
        ("forkserver", "top"),
    ],
)
def test_ranks_of_a_script_that_starts_the_probe_are_timed(
    tmp_path: Path, method: str, started: str
) -> None:
    """Whether the parent, each rank's own function or the script's top calls `start`."""
    job = run(tmp_path, "--method", method, "--started", started, "--end", "exit-0", bare=True)

    assert_both_ranks(job)
    assert all(each["finished"] for each in job.ranks())


def test_ranks_own_start_wins(tmp_path: Path) -> None:
    """What a rank's function gives to `start` counts, also under `-m rank_probe`."""
    job = run(tmp_path, "--method", "fork", "--started", "target")

    assert_both_ranks(job)
    assert {each["job_id"] for each in job.ranks()} == {"by-hand"}


@pytest.mark.parametrize(
    ("method", "started", "launcher"),
    [
        ("spawn", "", {}),
        pytest.param("spawn", "top", TORCHRUN, marks=NIGHTLY),
        ("fork", "", TORCHRUN),
        ("forkserver", "top", {}),
        pytest.param("forkserver", "top", TORCHRUN, marks=NIGHTLY),
    ],
)
def test_helpers_are_no_ranks(
    tmp_path: Path, method: str, started: str, launcher: dict[str, str]
) -> None:
    """Workers of loaders and pools work as ever, and only the process that trains reports."""
    arguments = ["--method", method, "--helpers", *(["--started", started] if started else [])]
    job = run(tmp_path, *arguments, bare=bool(started), environment=launcher)

    assert job.output.splitlines()[:3] == ["pool 4", "executor 4", "manager [1, 2]"]
    assert "rank_probe" not in job.errors
    assert [(each["pid"], each["rank"], each["steps"]) for each in job.ranks()] == [
        (job.parent, 0, STEPS)
    ]
    assert job.ranks()[0]["finished"]


def test_child_that_cannot_import_the_probe_starts() -> None:
    """What its parent's preparation data holds for us does nothing there."""
    note = children._Note(children.StartOptions(automatic=True))
    run_by_pickle, (program, names) = note.__reduce__()
    lost = names | {"folder": "/nowhere"}
    child = f"exec({program!r}, {lost!r}); import sys; print('/nowhere' in sys.path)"
    done = subprocess.run([sys.executable, "-IS", "-c", child], capture_output=True, text=True)

    assert run_by_pickle is exec
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_nothing_is_carried_to_the_children_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are its helpers, and their preparation data is what it would be without us."""
    monkeypatch.setattr(children, "_following", children._Following())
    prepare = spawn.get_preparation_data
    monkeypatch.setattr(spawn, "get_preparation_data", prepare)
    bare = set(prepare("child"))
    is_rank = False
    children.follow(children.StartOptions(), lambda options: None, lambda: is_rank)

    assert set(spawn.get_preparation_data("child")) - bare == {"rank_probe"}
    is_rank = True
    assert set(spawn.get_preparation_data("child")) == bare
    is_rank = False
    children.leave_alone()
    assert set(spawn.get_preparation_data("child")) == bare


ROOT = Path(__file__).parents[3]
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
            [sys.executable, "-m", "rank_probe", str(JOB), "--lightning"],
            cwd=tmp_path,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "RANKSKEW_EXPORTER": sink.endpoint, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    ranks, said = sink.last(), [line for line in done.stdout.splitlines() if "--lightning" in line]

    assert done.returncode == 0, done.stderr
    assert sorted(said) == ["rank 0 ['--lightning']", "rank 1 ['--lightning']"]
    assert [(each["steps"], each["finished"]) for each in ranks.values()] == [(STEPS, True)] * 2
    assert {(each["rank"], each["world_size"]) for each in sink.snapshots} == {(0, 2), (1, 2)}
