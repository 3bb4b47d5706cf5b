"""Tests of the trainer's command, as a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rank_probe.command_line.grammar import USAGE
from rank_probe.version import __version__
from tests.rank_probe.sink import listening


def run(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m rank_probe` with *arguments* in *cwd*."""
    launcher = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    return subprocess.run(
        [sys.executable, "-m", "rank_probe", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | launcher | (environment or {}),
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that says what it sees and ends as its first argument says."""
    path = tmp_path / "train.py"
    path.write_text(
        "import sys, helper\n"
        "print(__name__, sys.argv[1:], helper.VALUE)\n"
        "if sys.argv[1] == 'raise': raise RuntimeError('theirs')\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    (tmp_path / "helper.py").write_text("VALUE = 42\n")
    return path


def test_script_runs_as_main_with_its_arguments(script: Path) -> None:
    """The script sees itself as __main__, its own argv and its own folder."""
    done = run(str(script), "0", "--lr", "1", cwd=script.parent)

    assert done.stdout == "__main__ ['0', '--lr', '1'] 42\n"
    assert done.returncode == 0


def test_module_runs_like_python_m(script: Path) -> None:
    """`-m rank_probe -m train` is `-m train` with its stages timed."""
    done = run("-m", "train", "0", cwd=script.parent)

    assert done.stdout == "__main__ ['0'] 42\n"


def test_exit_status_passes(script: Path) -> None:
    """The launcher sees the script's own status."""
    assert run(str(script), "3", cwd=script.parent).returncode == 3


def test_exception_passes(script: Path) -> None:
    """The script's traceback and status are what they were."""
    done = run(str(script), "raise", cwd=script.parent)

    assert "RuntimeError: theirs" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(("end", "finished"), [("0", True), ("3", False), ("raise", False)])
def test_only_a_clean_end_marks_the_rank_finished(
    script: Path, end: str, finished: bool, tmp_path: Path
) -> None:
    """A crashed rank goes silent, so that somebody hears of it."""
    with listening(tmp_path / "s") as sink:
        run(
            str(script),
            end,
            cwd=script.parent,
            environment={"RANKSKEW_EXPORTER": f"unix:{tmp_path}/s"},
        )

    assert sink.snapshots[-1]["finished"] is finished


TRAINS = """
import os, sys
print("torch" in sys.modules)
os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
import torch.nn
import torch.distributed
print(torch.get_num_threads(), torch.distributed.get_debug_level().name)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(6, 2), batch_size=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def test_script_decides_when_torch_is_imported(tmp_path: Path) -> None:
    """Variables that it sets for torch take effect, and its loop is timed all the same."""
    (tmp_path / "train.py").write_text(TRAINS)
    with listening(tmp_path / "s") as sink:
        done = run(
            "train.py",
            cwd=tmp_path,
            environment={
                "RANKSKEW_EXPORTER": sink.endpoint,
                # Nobody names the rank, so the pusher asks torch for it, during its import too.
                "RANK": "",
                "OMP_NUM_THREADS": "2",
            },
        )

    assert done.stderr == ""
    assert done.stdout == "False\n1 DETAIL\n"
    assert sink.snapshots[-1]["steps"] == 3
    assert {"data", "forward", "backward", "optimizer"} <= set(sink.snapshots[-1]["stage_seconds"])
    assert sink.snapshots[-1]["probe_errors"] == 0


@pytest.mark.parametrize("option", ["--local_rank=0", "--local-rank=3"])
@pytest.mark.parametrize("as_module", [False, True])
def test_option_of_the_launcher_is_the_scripts(script: Path, option: str, as_module: bool) -> None:
    """deepspeed and torch.distributed.launch put it before the script's other arguments."""
    target = ["-m", "train"] if as_module else ["train.py"]
    script.write_text("import sys; print(sys.argv[1:])")
    done = run(option, *target, "--lr", "1", cwd=script.parent)

    assert done.stdout == f"['{option}', '--lr', '1']\n"


def test_launcher_that_passes_the_local_rank(script: Path) -> None:
    """`torch.distributed.launch -m rank_probe` starts, as without the probe."""
    script.write_text("import sys; print(sys.argv[1:])")
    launcher = ["torch.distributed.launch", "--nproc-per-node", "1", "--master-port", "0"]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "rank_probe", script.name, "--lr"],
        capture_output=True,
        text=True,
        cwd=script.parent,
    )

    assert done.stdout == "['--local-rank=0', '--lr']\n", done.stderr


def test_safe_path_stays_safe(script: Path) -> None:
    """With PYTHONSAFEPATH the script's folder is not on the path, as without the probe."""
    script.write_text("import sys; print(repr(sys.path[0]))")
    safe = os.environ | {"PYTHONSAFEPATH": "1"}
    bare = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=safe, cwd=script.parent
    )
    done = run(str(script), cwd=script.parent, environment={"PYTHONSAFEPATH": "1"})

    assert done.stdout == bare.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected a script, -m MODULE, check, audit or bench-collectives"),
        (["run"], "expected a script, -m MODULE, check, audit or bench-collectives"),
        (["--local_rank=0"], "expected a script, -m MODULE, check, audit or bench-collectives"),
        (["-m"], "-m must be followed by the name of a module"),
        (["absent.py"], "there is no script 'absent.py' in "),
        (["run", "absent.py", "--lr"], "there is no script 'absent.py' in "),
        (["-m", "absent.module"], "there is no module 'absent'"),
        (["--nproc-per-node", "2"], "unknown option '--nproc-per-node'; "),
    ],
)
def test_wrong_command_is_one_sentence(arguments: list[str], said: str, tmp_path: Path) -> None:
    """It says what is wrong and what to do, without a traceback."""
    done = run(*arguments, cwd=tmp_path)

    assert done.stderr.startswith(f"rank-probe: {said}")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("; see rank-probe --help\n")
    assert done.stdout == ""
    assert done.returncode == 2


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["run", "--help"]])
def test_help_shows_every_form(arguments: list[str], tmp_path: Path) -> None:
    """One usage serves `rank-probe` and `python -m rank_probe`."""
    done = run(*arguments, cwd=tmp_path)

    assert done.stdout == f"{USAGE}\n"
    assert done.returncode == 0


def test_version_is_told(tmp_path: Path) -> None:
    """`--version` names the command and its version."""
    assert run("--version", cwd=tmp_path).stdout == f"rank-probe {__version__}\n"


def test_run_may_be_said(script: Path) -> None:
    """`rank-probe run train.py` is `rank-probe train.py`, and so it is after `python -m`."""
    assert run("run", str(script), "0", cwd=script.parent).stdout == "__main__ ['0'] 42\n"
