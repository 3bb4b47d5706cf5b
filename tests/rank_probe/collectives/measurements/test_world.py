"""A process that cannot be a rank is told what is missing."""

import pytest

from rank_probe.collectives.measurements.failure import CannotMeasure
from rank_probe.collectives.measurements.world import PlaceInWorld, chosen, place

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
