"""Tests of the ways to train, in models and loops of all shapes: who is late, and where."""

from collections.abc import Callable

import pytest

from rank_probe.lines.user_code import BEFORE_MODEL
from tests.rank_probe.forks import Zygote
from tests.rank_probe.jobs.loops_job import LOOPS, STAGES
from tests.rank_probe.jobs.parallel_arms import ARMS, DELAY
from tests.rank_probe.launch import Jobs, Ranks
from tests.rank_probe.ways import Arm, verdict

MODULE = "tests.rank_probe.jobs.loops_job"
STEPS = 4
# Two of each loop's stages; tests/rank_probe/ways.py plants a delay in all of them.
PLACES = dict.fromkeys(ARMS, ("forward", "backward", "optimizer")) | {
    "varying_accumulation": ("data", "backward"),
    "distillation": ("forward", "other"),
    "several_loaders": ("data", "forward"),
    "optimizer_in_backward": ("backward", "optimizer"),
    "async_save": ("data", "checkpoint"),
    "titan_shaped": ("data", "backward"),
    "local_sgd": ("forward", "optimizer"),
    "diloco": ("backward", "other"),
    "rollouts": ("forward", "other"),
    "prompted_rollouts": ("data", "optimizer"),
    "own_batches": ("other", "eval"),
}
CASES = [(loop, place) for loop, places in PLACES.items() for place in places]
# The judge names nobody before its 25th, then the rank is sampled.
JUDGED_STEPS = 64
HEALTHY_STEPS = 160
# Once its samples show that it fetches there, the judge waits for steps that were timed so.
RESTAGED_STEPS = 160


Train = Callable[..., dict[str, Ranks]]


@pytest.fixture(scope="module")
def train(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train each of some cases for so many steps with rank 1 of two late, in one pair of ranks."""

    def train(steps: int, *cases: str) -> dict[str, Ranks]:
        folder = tmp_path_factory.mktemp("ranks")
        return zygote.run(folder, MODULE, str(steps), "1", *cases, CHECKPOINTS=str(folder))

    return train


@pytest.fixture(scope="module")
def jobs(train: Train) -> Jobs:
    """Every case, after a first one of each loop that pays for torch's one-time work."""

    def launch(*cases: str) -> dict[str, Ranks]:
        first = dict.fromkeys(f"{case.partition('-')[0]}-warm-up" for case in cases)
        return train(STEPS, *first, *cases)

    return Jobs(launch, *(f"{loop}-{place}" for loop, place in CASES))


@pytest.mark.jobs
@pytest.mark.parametrize(("loop", "place"), CASES)
def test_late_rank_and_its_stage_are_told(loop: str, place: str, jobs: Jobs) -> None:
    """The delay is in its own stage of the late rank, and in the other one's `sync`."""
    arm = Arm(loop, (), prefix=f"{loop}-")

    def check(ranks: Ranks) -> None:
        row = verdict(arm, place, ranks)

        assert (row["waits least"], row["furthest ahead in"]) == (1, place)
        assert 0.75 * row["planted, ms"] < row["by, ms"] < 1.25e3 * DELAY

    jobs.check(arm.prefix + place, check)
    for rank in jobs[arm.prefix + place].values():
        assert rank["probe_errors"] == 0
        assert rank["steps"] == STEPS


def test_loops_are_all_tested() -> None:
    """Except own_stream, whose stage is known only once its stack was sampled."""
    assert {*PLACES, "own_stream"} == set(LOOPS)
    assert {place for places in PLACES.values() for place in places} == set(STAGES)


@pytest.mark.jobs
def test_loop_without_a_loader_is_late_in_data(train: Train) -> None:
    """Its judge calls it so a few steps after its stack was sampled, with all of its cost."""
    rank = train(RESTAGED_STEPS, "own_stream-data")["own_stream-data"][1]
    late, line = rank["verdict"]["late"][0], rank["late_lines"][0]

    assert (late["rank"], late["stage"], set(late["gpus"])) == (1, "data", {"data"})
    assert line["stage"] == "data"
    assert line["place"].startswith("own_stream.stream (")


@pytest.mark.jobs
def test_what_ran_before_the_model_is_told_so(train: Train) -> None:
    """Half of the delay is in the teacher's forward, the rest in that of the student under DDP."""
    ranks = train(JUDGED_STEPS, "distillation-forward")["distillation-forward"]
    lines = ranks[1]["late_lines"][:2]
    student, teacher = sorted((line["place"] for line in lines), key=len)

    assert [line["stage"] for line in lines] == ["forward"] * 2
    assert teacher == student + BEFORE_MODEL


@pytest.mark.nightly
@pytest.mark.parametrize("loop", LOOPS)
def test_nobody_is_named_while_no_rank_is_late(loop: str, train: Train) -> None:
    """Once the judge has compared enough steps; without a delay they are over soon."""
    ranks = train(HEALTHY_STEPS, f"{loop}-none")[f"{loop}-none"]

    assert ranks[0]["verdict"]["reason"] is None
    assert ranks[0]["verdict"]["late"] == []
