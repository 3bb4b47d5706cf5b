"""Tests of the probe on real torch ranks over gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rank_probe.stages import STAGES
from tests.rank_probe.sink import listening

ROOT = Path(__file__).parents[2]
STEPS = 12
FAULT_RANK = 1
DELAY = 0.1
STAGE_OF = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "after_optimizer": "other",
}


def torchrun(*command: str, **environment: str) -> None:
    """Run *command* on two ranks; a rank that fails fails the test with its output."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *command],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def fault(name: str) -> list[str]:
    """Return the arguments that plant a fault on the second rank."""
    numbers = ["--steps", str(STEPS), "--fault-rank", str(FAULT_RANK), "--delay", str(DELAY)]
    return [*numbers, "--fault", name]


@pytest.fixture(scope="module", params=sorted(STAGE_OF))
def measured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[int, dict[str, Any]]]:
    """The same two-rank run timed in both ways, for each place a fault may be in."""
    answers = tmp_path_factory.mktemp("answers")
    torchrun("-m", "tests.rank_probe.both_ways", *fault(request.param), ANSWERS=str(answers))
    return request.param, {
        rank: json.loads((answers / f"{rank}.json").read_text()) for rank in (0, 1)
    }


def test_both_ways_give_the_same_numbers(
    measured: tuple[str, dict[int, dict[str, Any]]],
) -> None:
    """Every stage of every rank agrees to 5 % or 1 ms a step."""
    _, ranks = measured
    for rank in ranks.values():
        assert rank["by_hand"]["steps"] == rank["automatic"]["steps"] == STEPS
        for stage in STAGES:
            by_hand, automatic = rank["by_hand"][stage], rank["automatic"][stage]
            assert automatic == pytest.approx(by_hand, rel=0.05, abs=0.001), stage


def test_stages_add_up_to_the_wall_time(
    measured: tuple[str, dict[int, dict[str, Any]]],
) -> None:
    """From the first batch to the last release, to 1 %; only what follows that is outside."""
    name, ranks = measured
    for rank_number, rank in ranks.items():
        after_release = rank["automatic"]["optimizer"] * STEPS / (STEPS - 1)
        if name in ("optimizer", "after_optimizer") and rank_number == FAULT_RANK:
            after_release += DELAY if name == "after_optimizer" else 0
        counted = sum(rank["automatic"][stage] for stage in STAGES) * STEPS

        assert counted + after_release == pytest.approx(rank["wall"], rel=0.01)


def test_late_rank_waits_least_and_its_stage_is_ahead(
    measured: tuple[str, dict[int, dict[str, Any]]],
) -> None:
    """The delay is in the right stage of the right rank, and in the other's wait."""
    name, ranks = measured
    late, victim = ranks[FAULT_RANK]["automatic"], ranks[0]["automatic"]
    excess = {stage: late[stage] - victim[stage] for stage in STAGES}
    # After the last release nothing is committed, so a delay there shows one step less.
    expected = DELAY * ((STEPS - 1) / STEPS if name in ("optimizer", "after_optimizer") else 1)

    assert max(excess, key=lambda stage: excess[stage]) == STAGE_OF[name]
    assert excess[STAGE_OF[name]] == pytest.approx(expected, rel=0.1)
    assert victim["sync"] - late["sync"] == pytest.approx(expected, rel=0.1)


def test_unchanged_script_is_timed_under_the_launcher(tmp_path: Path) -> None:
    """`torchrun -m rank_probe train.py` pushes every rank's whole steps and its clean end."""
    with listening(tmp_path / "s") as sink:
        torchrun(
            "-m",
            "rank_probe",
            "demo/train.py",
            *fault("data"),
            RANKSKEW_EXPORTER=f"unix:{tmp_path}/s",
            RANKSKEW_JOB_ID="unchanged",
        )
    ranks = sink.last()

    assert set(ranks) == {0, 1}
    for rank in ranks.values():
        assert rank["job_id"] == "unchanged"
        assert rank["steps"] == STEPS
        assert rank["finished"]
        assert rank["probe_errors"] == 0
        assert rank["runtime_info"]["backend"] == "gloo"
    assert ranks[1]["stage_seconds"]["data"] - ranks[0]["stage_seconds"]["data"] > STEPS * 0.09
    assert ranks[0]["stage_seconds"]["sync"] - ranks[1]["stage_seconds"]["sync"] > STEPS * 0.09


def test_real_compute_is_told_apart_too(tmp_path: Path) -> None:
    """With matrices instead of sleeps, and the cores shared, the late rank still stands out."""
    with listening(tmp_path / "s") as sink:
        torchrun(
            "-m",
            "rank_probe",
            "demo/train.py",
            "--real-compute",
            *fault("forward"),
            RANKSKEW_EXPORTER=f"unix:{tmp_path}/s",
        )
    ranks = sink.last()
    late, victim = ranks[FAULT_RANK]["stage_seconds"], ranks[0]["stage_seconds"]
    excess = {stage: late[stage] - victim[stage] for stage in late}

    assert max(excess, key=lambda stage: excess[stage]) == "forward"
    assert late["sync"] < 0.5 * victim["sync"]
