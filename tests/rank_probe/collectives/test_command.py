"""`rank-probe bench-collectives` that cannot measure says so in one sentence, and never hangs."""

import os
import subprocess
import sys

import pytest

from rank_probe.collectives import command
from rank_probe.collectives.command import CannotMeasure, chosen, place
from rank_probe.command_line.grammar import WrongCommand
from tests.exporter.running import ROOT

STUCK = """
import time
from rank_probe.collectives.command import Watchdog
watchdog = Watchdog(3, 0.3)
watchdog.start()
watchdog.begins("the exchange between ranks 3 and 5")
time.sleep(60)
"""


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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["-m", "rank_probe", "bench-collectives"],
            "no launcher has given this process a rank; start it with: "
            "torchrun --nproc-per-node 8 -m rank_probe bench-collectives",
        ),
        (
            ["-c", STUCK],
            "rank 3 waited 0 s in vain during the exchange between ranks 3 and 5: a rank has "
            "ended or hangs, or a link is down; for slow links raise --timeout or lower --max-mib",
        ),
    ],
    ids=["alone", "stuck"],
)
def test_rank_that_cannot_measure_ends(arguments: list[str], sentence: str) -> None:
    """With status 2, and what it was doing."""
    alone = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=alone, cwd=ROOT
    )

    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"rank-probe: {sentence}\n")


LAUNCHED = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2", "SLURM_STEP_ID": "0"}
MASTER = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("launcher", "found"),
    [(LAUNCHED, (3, 8, "1")), (SLURM, (5, 6, "2"))],
    ids=["torchrun", "slurm"],
)
def test_place_comes_from_the_launcher(
    launcher: dict[str, str], found: tuple[int, int, str]
) -> None:
    """torchrun's variables, or those of SLURM and MPI with the address of rank 0."""
    me = place(launcher | MASTER)

    assert (me.rank, me.world_size, me.local_rank) == found


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"RANK": "0", "WORLD_SIZE": "1"}, "one rank alone has no link; start at least two"),
        (LAUNCHED, "MASTER_ADDR is not set, so ranks cannot reach each other"),
    ],
)
def test_missing_launcher_is_one_sentence(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(CannotMeasure, match=sentence):
        place(environment)


def test_backend_is_that_of_torch() -> None:
    """Without a GPU it is gloo, and NCCL cannot be asked for."""
    assert chosen(None) == "gloo"
    with pytest.raises(CannotMeasure, match="nccl needs a GPU"):
        chosen("nccl")
