"""Wrong usage of `rank-probe bench-collectives`, or no launcher, is one sentence and status 2."""

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
        (["--max-mib", "4X"], "argument --max-mib: '4X' is not a whole number above 0"),
        (["--max-mib", "0"], "argument --max-mib: '0' is not a whole number above 0"),
        (["--duration", "30"], "argument --duration: '30' is not a duration such as 30s or 5m"),
        (["--timeout", "0s"], "argument --timeout: '0s' is not a duration above 0"),
        (["--backend", "mpi"], "argument --backend: invalid choice: 'mpi'"),
        (["--textfile", "/absent/p.prom"], "there is no directory /absent"),
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
