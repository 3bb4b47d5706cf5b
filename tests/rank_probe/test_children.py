"""Tests of the processes that a script or its framework starts: ranks, helpers, itself again."""

import subprocess
import sys
from importlib.machinery import ModuleSpec
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from rank_probe.process import children, relaunch
from tests.rank_probe.children_job import STEPS
from tests.rank_probe.forks import Zygote
from tests.rank_probe.launch import ROOT
from tests.rank_probe.sink import Sink, listening

JOB = Path(__file__).with_name("children_job.py")
# Runs the job as `python -m rank_probe children_job.py` does, and without the probe.
UNDER_THE_PROBE = ("rank_probe", str(JOB))
BARE = ("tests.rank_probe.children_job",)
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}
SLURM |= {"SLURM_NNODES": "1"}


def run(zygote: Zygote, folder: Path, *job: str, **environment: str) -> tuple[str, Sink]:
    """Run the *job*, which must end well; return what it printed and what its processes pushed."""
    output = folder / "output"
    with listening(folder / "s") as sink:
        told = {"RANKSKEW_EXPORTER": sink.endpoint}
        fork = zygote.start(output, *job, **told | environment)
        assert fork.wait() == 0, output.read_text()
    return output.read_text(), sink


class Ways(NamedTuple):
    """How a script starts two ranks, and what is known of them then."""

    words: str
    codes: str = "[0, 0]"
    runs: tuple[str, ...] = UNDER_THE_PROBE
    environment: dict[str, str] = {}  # noqa: RUF012 - nobody changes it
    local_ranks: tuple[str, ...] = ("", "")
    job_id: str = ""


WAYS = {
    # The group names them, as SLURM cannot: it knows one task.
    "spawn": Ways(
        "--method spawn --by torch --end raise",
        "[0, 1]",
        environment=SLURM,
        local_ranks=("0", "1"),
        job_id="7",
    ),
    "forkserver": Ways("--method forkserver --by process --started top --trains", runs=BARE),
    "fork": Ways("--by torch --end 3 --trains", "[0, 3]", local_ranks=("0", "1")),
    "fork of a parent that calls start": Ways("--by process --started parent --end 0", runs=BARE),
    "fork whose target calls start": Ways(
        "--by process --started target", runs=BARE, job_id="by-hand"
    ),
}


@pytest.mark.jobs
@pytest.mark.parametrize("way", WAYS)
def test_ranks_of_a_script_are_timed_and_its_helpers_are_no_ranks(
    way: str, zygote: Zygote, tmp_path: Path
) -> None:
    """Each way to start processes works as ever, and of them only ranks report.

    One that raises or exits with a status goes silent, and its exit code is its own. The parent
    reports if it trains: after its ranks, with a loader's worker, a pool's, and a manager.
    """
    words, codes, runs, environment, local_ranks, job_id = WAYS[way]
    job = (*runs, "--folder", str(tmp_path), *words.split())
    output, sink = run(zygote, tmp_path, *job, **environment)
    parent = int(output.split()[-1])
    last = {snapshot["pid"]: snapshot for snapshot in sink.snapshots}
    trained = last.pop(parent, None)
    ranks = sorted(last.values(), key=lambda snapshot: int(snapshot["rank"]))

    assert codes in output.splitlines()
    assert "rank_probe: " not in output
    assert [(each["rank"], each["world_size"]) for each in ranks] == [(0, 2), (1, 2)]
    for each in ranks:
        assert (each["steps"], each["probe_errors"]) == (STEPS, 0)
        assert {"data", "forward", "backward", "optimizer"} <= set(each["stage_seconds"])
    assert [each["finished"] for each in ranks] == [True, codes == "[0, 0]"]
    assert [each["rank_info"]["local_rank"] for each in ranks] == list(local_ranks)
    assert not job_id or {each["job_id"] for each in ranks} == {job_id}
    # A fork knows torch's function by a name that its parent imported, which costs the rendezvous.
    events = {each["event"] for each in ranks[0]["lifecycle_events"]}
    assert ("rendezvous" in events) == ("--method" in words)
    assert "pool [False, False]" in output
    assert (trained is not None) == ("--trains" in words)
    if trained is not None:
        assert "executor [False, False]\nmanager [1, 2]\n" in output
        assert (trained["rank"], trained["steps"], trained["finished"]) == (0, STEPS, True)


@pytest.mark.jobs
def test_helpers_of_a_rank_are_no_ranks(zygote: Zygote, tmp_path: Path) -> None:
    """Where the launcher says who this process is, it alone reports."""
    output, sink = run(zygote, tmp_path, *UNDER_THE_PROBE, "--trains", **TORCHRUN)

    assert output.startswith("pool [False, False]\nexecutor [False, False]\nmanager [1, 2]\n")
    assert {each["pid"] for each in sink.snapshots} == {int(output.split()[-1])}
    assert (sink.last()[0]["steps"], sink.last()[0]["finished"]) == (STEPS, True)


@pytest.mark.jobs
def test_every_rank_of_lightnings_own_launcher_is_timed(zygote: Zygote, tmp_path: Path) -> None:
    """`python -m rank_probe train.py` without torchrun: the other ranks are under the probe too."""
    _, sink = run(zygote, tmp_path, *UNDER_THE_PROBE, "--lightning", PYTHONPATH=str(ROOT))
    ranks = sink.last().values()

    assert [(each["steps"], each["finished"]) for each in ranks] == [(STEPS, True)] * 2
    assert {(each["rank"], each["world_size"]) for each in sink.snapshots} == {(0, 2), (1, 2)}


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


BASIC = """
import sys
def _basic_subprocess_cmd():
    return [sys.executable, "/job/train.py", "--lr", "1"]
"""
HYDRA = """
def _hydra_subprocess_cmd(local_rank):
    return [sys.executable, "-m", "pkg.train", f"hydra.job.name={local_rank}"], "/job"
"""


def module(monkeypatch: pytest.MonkeyPatch, name: str, text: str, **known: Any) -> Any:
    """Return a module of Lightning as this test writes it; torch's real ones are not imported."""
    made = ModuleType(name)
    vars(made).update(known)
    exec(text, vars(made))
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.mark.parametrize("index", [0, 1])
def test_commands_gain_the_probe(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    """Of both packages, with hydra or without; once, though one module imports it from another.

    A version without these functions, or with commands of another kind, is left alone.
    """
    builds = module(monkeypatch, relaunch.MODULES[index], BASIC + HYDRA)
    patches = [relaunch.attach()]
    both = {name: vars(builds)[name] for name in (relaunch.BASIC, relaunch.HYDRA)}
    imports = module(monkeypatch, relaunch.MODULES[index + 2], "", **both)
    patches.append(relaunch.attach())
    commands = imports._basic_subprocess_cmd(), imports._hydra_subprocess_cmd(local_rank=1)
    other = module(monkeypatch, relaunch.MODULES[3 - index], "")
    vars(other)[relaunch.BASIC] = lambda: ["srun", "train.py"]
    patches.append(relaunch.attach())
    assert other._basic_subprocess_cmd() == ["srun", "train.py"]
    for each in reversed(patches):
        each.undo()
    probe = [sys.executable, "-m", "rank_probe"]

    assert commands == (
        [*probe, "/job/train.py", "--lr", "1"],
        ([*probe, "-m", "pkg.train", "hydra.job.name=1"], "/job"),
    )
    assert builds._basic_subprocess_cmd() == [sys.executable, *commands[0][3:]]


def test_module_that_is_being_imported_says_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's thread imports multiprocessing while the probe's asks who this process is."""
    half = ModuleType("multiprocessing.process")
    half.__spec__ = ModuleSpec(half.__name__, None)
    monkeypatch.setattr(half.__spec__, "_initializing", True, raising=False)
    monkeypatch.setitem(sys.modules, half.__name__, half)

    assert (children.is_child(), children.index()) == (False, None)
