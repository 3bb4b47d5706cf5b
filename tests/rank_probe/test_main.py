"""Tests of the trainer's command, as a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rank_probe.sink import listening


def run(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m rank_probe` with *arguments* in *cwd*."""
    return subprocess.run(
        [sys.executable, "-m", "rank_probe", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"RANK": "0", "WORLD_SIZE": "1"} | (environment or {}),
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


def test_missing_script_is_one_sentence(tmp_path: Path) -> None:
    """A wrong path is said, without a traceback."""
    done = run("absent.py", cwd=tmp_path)

    assert done.stderr == "rank-probe: no such script: 'absent.py'\n"
    assert done.returncode == 2


def test_check_says_that_nobody_answers(tmp_path: Path) -> None:
    """`rank-probe check` names the rank and the exporter that is not there."""
    command = "import sys, rank_probe.__main__ as m; sys.exit(m.main(['check']))"
    done = subprocess.run(
        [sys.executable, "-c", command],
        capture_output=True,
        text=True,
        env=os.environ
        | {
            "RANK": "3",
            "WORLD_SIZE": "4",
            "RANKSKEW_JOB_ID": "j",
            "RANKSKEW_EXPORTER": f"unix:{tmp_path}/absent.sock",
        },
    )

    assert "rank: 3 of 4 in job 'j', attempt 0" in done.stdout
    assert "start one with: rankskew exporter" in done.stdout
    assert done.returncode == 1
