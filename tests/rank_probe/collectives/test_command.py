"""Wrong usage of `rank-probe bench-collectives`, or no launcher, is one sentence and status 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rank_probe.collectives import command
from rank_probe.collectives.world import CannotMeasure, PlaceInWorld, chosen, place
from rank_probe.command_line.grammar import WrongCommand


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max-bytes", "4X"], "argument --max-bytes: '4X' is not a size such as 4096"),
        (["--max-bytes", "0"], "argument --max-bytes: a size must be at least one byte"),
        (["--seconds", "-1"], "argument --seconds: '-1' is not a number of seconds"),
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


LAUNCHED = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
MASTER = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}


def test_place_comes_from_the_launcher() -> None:
    """torchrun's variables, or those of SLURM and MPI with the address of rank 0."""
    assert place(LAUNCHED | MASTER) == PlaceInWorld(3, 8, 1)
    slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2"}
    assert place(slurm | MASTER | {"SLURM_STEP_ID": "0"}) == PlaceInWorld(5, 6, 2)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({}, "no launcher has given this process a rank; start it with: torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "one rank alone has no link; start at least two"),
        (LAUNCHED, "MASTER_ADDR and MASTER_PORT must be set"),
    ],
)
def test_missing_launcher_is_one_sentence(environment: dict[str, str], sentence: str) -> None:
    """What is wrong, and how to start it."""
    with pytest.raises(CannotMeasure, match=sentence):
        place(environment)


def test_backend_is_that_of_torch() -> None:
    """Without a GPU it is gloo, and NCCL cannot be asked for."""
    assert chosen(None) == "gloo"
    with pytest.raises(CannotMeasure, match="nccl needs a GPU"):
        chosen("nccl")
