"""A rank finds its place, and one that cannot go on says so, and never hangs."""

import subprocess
import sys

import pytest

from rank_probe.collectives.world import CannotMeasure, chosen, place
from tests.exporter.running import ROOT

STUCK = """
import time
from rank_probe.collectives.world import Watchdog
watchdog = Watchdog(3, 0.3)
watchdog.start()
watchdog.begins("the exchange between ranks 3 and 5")
time.sleep(60)
"""


def test_step_that_takes_too_long_ends_the_rank() -> None:
    """With what it was doing, and status 2."""
    done = subprocess.run([sys.executable, "-c", STUCK], cwd=ROOT, capture_output=True, text=True)

    assert done.stderr == (
        "rank-probe: rank 3 waited 0 s in vain during the exchange between ranks 3 and 5: a rank "
        "has ended or hangs, or a link is down; for slow links raise --timeout or lower --max-mib\n"
    )
    assert done.returncode == 2


LAUNCHED = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
MASTER = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}


def test_place_comes_from_the_launcher() -> None:
    """torchrun's variables, or those of SLURM and MPI with the address of rank 0."""
    me = place(LAUNCHED | MASTER)
    assert (me.rank, me.world_size, me.local_rank) == (3, 8, "1")
    slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2"}
    me = place(slurm | MASTER | {"SLURM_STEP_ID": "0"})
    assert (me.rank, me.world_size, me.local_rank) == (5, 6, "2")


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({}, "no launcher has given this process a rank; start it with: torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "one rank alone has no link; start at least two"),
        (LAUNCHED, "MASTER_ADDR is not set, so ranks cannot reach each other"),
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
