"""Tests of the probe on real torch ranks over gloo."""

import json
from pathlib import Path

import pytest

from rank_probe.wire.stages import STAGES
from tests.rank_probe.launch import Jobs, Ranks, torchrun

pytestmark = pytest.mark.jobs

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


def fault(name: str) -> list[str]:
    """Return the arguments that plant a fault on the second rank."""
    numbers = ["--steps", str(STEPS), "--fault-rank", str(FAULT_RANK), "--delay", str(DELAY)]
    return [*numbers, "--fault", name]


@pytest.fixture(scope="module", params=sorted(STAGE_OF))
def place(request: pytest.FixtureRequest) -> str:
    """Each place that a fault may be in."""
    return str(request.param)


@pytest.fixture(scope="module")
def measured(place: str, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """The same two-rank run timed in both ways."""

    def measure(place: str) -> dict[str, Ranks]:
        answers = tmp_path_factory.mktemp("answers")
        torchrun(answers, "tests.rank_probe.jobs.both_ways", *fault(place), ANSWERS=str(answers))
        ranks = {rank: json.loads((answers / f"{rank}.json").read_text()) for rank in (0, 1)}
        return {place: ranks}

    return Jobs(measure, place)


def test_both_ways_give_the_same_numbers(place: str, measured: Jobs) -> None:
    """Every stage of every rank agrees to 5 % or 1 ms a step."""

    def check(ranks: Ranks) -> None:
        for rank in ranks.values():
            assert rank["by_hand"]["steps"] == rank["automatic"]["steps"] == STEPS
            for stage in STAGES:
                by_hand, automatic = rank["by_hand"][stage], rank["automatic"][stage]
                assert automatic == pytest.approx(by_hand, rel=0.05, abs=0.001), stage

    measured.check(place, check)


def test_stages_add_up_to_the_wall_time(place: str, measured: Jobs) -> None:
    """From the first batch to the last release, to 1 %; only what follows that is outside."""

    def check(ranks: Ranks) -> None:
        for rank_number, rank in ranks.items():
            after_release = rank["automatic"]["optimizer"] * STEPS / (STEPS - 1)
            if place == "after_optimizer" and rank_number == FAULT_RANK:
                after_release += DELAY
            counted = sum(rank["automatic"][stage] for stage in STAGES) * STEPS

            assert counted + after_release == pytest.approx(rank["wall"], rel=0.01)

    measured.check(place, check)


def test_late_rank_waits_least_and_its_stage_is_ahead(place: str, measured: Jobs) -> None:
    """The delay is in the right stage of the right rank, and in the other's wait."""
    # After the last release nothing is committed, so a delay there shows one step less.
    share = (STEPS - 1) / STEPS if place in ("optimizer", "after_optimizer") else 1

    def check(ranks: Ranks) -> None:
        late, victim = ranks[FAULT_RANK]["automatic"], ranks[0]["automatic"]
        excess = {stage: late[stage] - victim[stage] for stage in STAGES}

        assert max(excess, key=lambda stage: excess[stage]) == STAGE_OF[place]
        assert excess[STAGE_OF[place]] == pytest.approx(share * DELAY, rel=0.1)
        assert victim["sync"] - late["sync"] == pytest.approx(share * DELAY, rel=0.1)

    measured.check(place, check)


def script(folder: Path, job: str, *arguments: str) -> Jobs:
    """Run the demo's script as *job* under the launcher's probe."""

    def train(job: str) -> dict[str, Ranks]:
        return torchrun(folder, "rank_probe", "demo/train.py", *arguments, RANKSKEW_JOB_ID=job)

    return Jobs(train, job)


def test_unchanged_script_is_timed_under_the_launcher(tmp_path: Path) -> None:
    """`torchrun -m rank_probe train.py` pushes every rank's whole steps and its clean end."""
    jobs = script(tmp_path, "unchanged", *fault("data"))

    def check(ranks: Ranks) -> None:
        late, victim = ranks[FAULT_RANK]["stage_seconds"], ranks[0]["stage_seconds"]

        assert late["data"] - victim["data"] > 0.7 * STEPS * DELAY
        assert victim["sync"] - late["sync"] > 0.7 * STEPS * DELAY

    jobs.check("unchanged", check)
    ranks = jobs["unchanged"]

    assert set(ranks) == {0, 1}
    for rank in ranks.values():
        assert rank["job_id"] == "unchanged"
        assert rank["steps"] == STEPS
        assert rank["finished"]
        assert rank["probe_errors"] == 0
        assert rank["runtime_info"]["backend"] == "gloo"


def test_real_compute_is_told_apart_too(tmp_path: Path) -> None:
    """With matrices instead of sleeps, and the cores shared, the late rank still stands out."""

    def check(ranks: Ranks) -> None:
        late, victim = ranks[FAULT_RANK]["stage_seconds"], ranks[0]["stage_seconds"]
        excess = {stage: late[stage] - victim[stage] for stage in late}

        assert max(excess, key=lambda stage: excess[stage]) == "forward"
        assert late["sync"] < 0.5 * victim["sync"]

    script(tmp_path, "real", "--real-compute", *fault("forward")).check("real", check)
