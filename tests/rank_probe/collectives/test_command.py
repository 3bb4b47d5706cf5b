"""Wrong usage of `rank-probe bench-collectives` is one sentence and status 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rank_probe.collectives import command
from rank_probe.command_line.grammar import WrongCommand


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--min-bytes", "4X"], "argument --min-bytes: '4X' is not a size such as 4096"),
        (["--max-bytes", "0"], "argument --max-bytes: a size must be at least one byte"),
        (["--factor", "1"], "argument --factor: '1' is not a whole number from 2 to 1024"),
        (["--seconds", "-1"], "argument --seconds: '-1' is not a number of seconds"),
        (["--backend", "mpi"], "argument --backend: invalid choice: 'mpi'"),
        (["--min-bytes", "8K", "--max-bytes", "4K"], "--max-bytes is below --min-bytes"),
        (["--picture", "/absent/p.svg"], "there is no directory /absent"),
    ],
)
def test_wrong_option_is_explained(words: list[str], sentence: str) -> None:
    """Before a rank waits for another."""
    with pytest.raises(WrongCommand) as wrong:
        command.run(words)

    assert str(wrong.value).startswith(sentence)


def test_without_a_launcher_it_ends(tmp_path: Path) -> None:
    """Status 2 and how to start it, as a process."""
    alone = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(
        [sys.executable, "-m", "rank_probe", "bench-collectives"],
        capture_output=True,
        text=True,
        env=alone,
    )

    assert done.stderr == (
        "rank-probe: no launcher has given this process a rank; start it with: "
        "torchrun --nproc-per-node 8 -m rank_probe bench-collectives\n"
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """And the meaning of each exit status."""
    with pytest.raises(SystemExit):
        command.run(["--help"])

    said = capsys.readouterr().out
    assert "exit status: 0 if nothing stands out" in said
    assert "torchrun --nproc-per-node 8 -m rank_probe bench-collectives --seconds 60" in said
