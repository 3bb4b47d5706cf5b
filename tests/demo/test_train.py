"""The example training trains, in every variant, and is slow where it was told to be."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.train import SHARE, VARIANTS, number_of_steps, seconds_by_stage

pytestmark = pytest.mark.jobs

SCRIPT = Path(__file__).parents[2] / "demo" / "train.py"


def options(**changed: object) -> argparse.Namespace:
    given = {"fault": "none", "fault_rank": 2, "delay": 0.1, "step_seconds": 0.2}
    return argparse.Namespace(**{**given, "steps": 100, "seconds": None, **changed})


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_trains_to_the_end(variant: str) -> None:
    """One rank alone runs its steps, learns, and leaves the process group without a warning."""
    arguments = ["--variant", variant, "--steps", "50", "--step-seconds", "0.002"]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), *arguments],
        env={
            **os.environ,
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",  # any: there is no other rank to be told
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 50  loss 0.")


@pytest.mark.parametrize("fault", SHARE)
def test_fault_is_on_one_rank_in_one_stage(fault: str) -> None:
    """The delay is added once, to the stage and the rank that were named."""
    healthy = seconds_by_stage(options(), rank=2)
    slow = seconds_by_stage(options(fault=fault), rank=2)

    assert sum(healthy.values()) == pytest.approx(0.2)
    assert slow[fault] - healthy[fault] == pytest.approx(0.1)
    assert {stage: slow[stage] for stage in SHARE if stage != fault} == {
        stage: healthy[stage] for stage in SHARE if stage != fault
    }
    assert seconds_by_stage(options(fault=fault), rank=1) == healthy


def test_duration_becomes_a_number_of_steps() -> None:
    """--seconds is turned into steps beforehand, the delay included, the same on every rank."""
    assert number_of_steps(options()) == 100
    assert number_of_steps(options(seconds=10.0)) == 50
    assert number_of_steps(options(seconds=9.0, fault="data")) == 30
