"""Tests of the probe on real torch ranks over gloo."""

import json
from pathlib import Path

import pytest

from rank_probe.wire.stages import STAGES
from tests.rank_probe.forks import Zygote
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


@pytest.fixture(scope="module")
def measured(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """The same two-rank runs timed in both ways, one for each place of the delay."""

    def measure(*places: str) -> dict[str, Ranks]:
        folder = tmp_path_factory.mktemp("answers")
        arguments = (str(STEPS), str(FAULT_RANK), *places)
        zygote.run(folder, "tests.rank_probe.jobs.both_ways", *arguments, ANSWERS=str(folder))
        answers = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
        return {place: {rank: answers[rank][place] for rank in (0, 1)} for place in places}

    return Jobs(measure, *STAGE_OF)


@pytest.mark.parametrize("place", STAGE_OF)
def test_both_ways_give_the_same_numbers_which_add_up(place: str, measured: Jobs) -> None:
    """Every stage of every rank agrees to 5 % or 1 ms a step, and all are the wall time to 1 %.

    That is from the first batch to the last release; only what follows that is outside.
    """

    def check(ranks: Ranks) -> None:
        for number, rank in ranks.items():
            assert rank["by_hand"]["steps"] == rank["automatic"]["steps"] == STEPS
            for stage in STAGES:
                by_hand, automatic = rank["by_hand"][stage], rank["automatic"][stage]
                assert automatic == pytest.approx(by_hand, rel=0.05, abs=0.001), stage
            after_release = rank["automatic"]["optimizer"] * STEPS / (STEPS - 1)
            if place == "after_optimizer" and number == FAULT_RANK:
                after_release += DELAY
            counted = sum(rank["automatic"][stage] for stage in STAGES) * STEPS
            assert counted + after_release == pytest.approx(rank["wall"], rel=0.01)

    measured.check(place, check)


@pytest.mark.parametrize("place", STAGE_OF)
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


def test_unchanged_script_is_timed_under_the_launcher(tmp_path: Path) -> None:
    """`torchrun -m rank_probe train.py` pushes every rank's whole steps and its clean end.

    With matrices instead of sleeps, and the cores shared, the late rank still stands out.
    """
    numbers = ("--steps", str(STEPS), "--fault-rank", str(FAULT_RANK), "--delay", str(DELAY))
    script = ("demo/train.py", "--real-compute", "--fault", "forward", *numbers)

    def train(job: str) -> dict[str, Ranks]:
        return torchrun(tmp_path, "rank_probe", *script, RANKSKEW_JOB_ID=job)

    def check(ranks: Ranks) -> None:
        late, victim = ranks[FAULT_RANK]["stage_seconds"], ranks[0]["stage_seconds"]
        excess = {stage: late[stage] - victim[stage] for stage in late}

        assert max(excess, key=lambda stage: excess[stage]) == "forward"
        assert late["sync"] < 0.5 * victim["sync"]

    jobs = Jobs(train, "unchanged")
    jobs.check("unchanged", check)

    assert set(jobs["unchanged"]) == {0, 1}
    for rank in jobs["unchanged"].values():
        assert rank["job_id"] == "unchanged"
        assert rank["steps"] == STEPS
        assert rank["finished"]
        assert rank["probe_errors"] == 0
        assert rank["runtime_info"]["backend"] == "gloo"
