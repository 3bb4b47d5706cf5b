"""Tests of the ways to train, in models and loops of all shapes: who is late, and where."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rank_probe.lines.user_code import BEFORE_MODEL
from tests.rank_probe.forks import Zygote
from tests.rank_probe.jobs.loops_job import LOOPS
from tests.rank_probe.jobs.parallel_arms import DELAY, EVERYWHERE, PLACES, asked_for
from tests.rank_probe.launch import PACKAGE, Jobs, Ranks, is_late

pytestmark = pytest.mark.jobs

STEPS = 4
# Loops whose batches come from their own generator or function; the first has its own test.
WITHOUT_LOADER = ("own_stream", "own_batches")
ALSO_IN = {"async_save": ("checkpoint",), "own_batches": ("eval",)}
# They pass through the same hooks as another loop; ways.py runs them.
LIKE_ANOTHER = ("ddp_accumulation", "fsdp2_accumulation", "pipeline_gpipe", "local_sgd")
CASES = [loop for loop in LOOPS if loop not in ("own_stream", "sharded_serving", *LIKE_ANOTHER)]
# The judge names no rank before its 25th step; only then is the late rank sampled.
JUDGED_STEPS = 56
HEALTHY_STEPS = 160
# Once samples show that the rank fetches there, the judge waits for steps timed that way.
RESTAGED_STEPS = 110


Train = Callable[..., dict[str, Ranks]]


@pytest.fixture(scope="module")
def train(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train each of some cases for so many steps with rank 1 of two late, in one pair of ranks."""

    def train(steps: int, *cases: str) -> dict[str, Ranks]:
        folder = tmp_path_factory.mktemp("ranks")
        # Code is generated for seconds; ways.py does it.
        return zygote.run(
            folder,
            f"{PACKAGE}.loops_job",
            str(steps),
            "1",
            *cases,
            CHECKPOINTS=str(folder),
            COMPILER="aot_eager",
        )

    return train


@pytest.fixture(scope="module")
def jobs(train: Train) -> Jobs:
    """Every loop with a delay in each stage, after a first one that pays for one-time work."""

    def launch(*loops: str) -> dict[str, Ranks]:
        cases = [f"{loop}-{place}" for loop in loops for place in ("warm-up", EVERYWHERE)]
        ranks = train(STEPS, *cases)
        return {loop: ranks[f"{loop}-{EVERYWHERE}"] for loop in loops}

    return Jobs(launch, *CASES)


@pytest.mark.parametrize("loop", CASES)
def test_late_rank_and_its_stages_are_told(loop: str, jobs: Jobs) -> None:
    """Each delay counts in its own stage on the late rank, and as `sync` on the other rank."""
    stages = {*PLACES, *ALSO_IN.get(loop, ())}
    if loop in ("rollouts", *WITHOUT_LOADER):
        stages.remove("data")
    # What follows the last release is in no whole step.
    lost = {"optimizer", "other", "checkpoint"}
    times = {stage: STEPS - (stage in lost) for stage in stages}
    jobs.check(loop, is_late(1, asked_for(times)))
    for rank in jobs[loop].values():
        assert rank["probe_errors"] == 0
        assert rank["steps"] == STEPS


def test_loop_without_a_loader_is_late_in_data(train: Train) -> None:
    """The judge names `data`, with all of the cost, a few steps after the stack was sampled."""
    rank = train(RESTAGED_STEPS, "own_stream-data")["own_stream-data"][1]
    late, line = rank["verdict"]["late"][0], rank["late_lines"][0]

    assert (late["rank"], late["stage"], set(late["gpus"])) == (1, "data", {"data"})
    assert line["stage"] == "data"
    assert line["place"].startswith("own_stream.stream (")


def test_what_ran_before_the_model_is_told_so(train: Train) -> None:
    """Half of the delay is in the teacher's forward, the rest in that of the student under DDP."""
    ranks = train(JUDGED_STEPS, "distillation-forward")["distillation-forward"]
    lines = ranks[1]["late_lines"][:2]
    student, teacher = sorted((line["place"] for line in lines), key=len)

    assert [line["stage"] for line in lines] == ["forward"] * 2
    assert teacher == student + BEFORE_MODEL


def test_slow_shard_is_told_and_no_idle_queue(train: Train) -> None:
    """A slow shard is late; the wait for requests is `sync` on all ranks and blames nobody."""
    cases = ("sharded_serving-other", "sharded_serving-none")
    served = train(STEPS, "sharded_serving-warm-up", *cases)
    slow, idle = ([served[case][rank]["stage_seconds"] for rank in (0, 1)] for case in cases)

    assert slow[1]["compute"] - slow[0]["compute"] > 0.75 * STEPS * DELAY
    assert slow[0]["sync"] - slow[1]["sync"] > 0.75 * STEPS * DELAY
    for stage in ("sync", "compute"):
        assert idle[1][stage] == pytest.approx(idle[0][stage], abs=0.7 * STEPS * DELAY)
    assert idle[0]["sync"] > STEPS * DELAY


@pytest.mark.nightly
@pytest.mark.parametrize("loop", LOOPS)
def test_nobody_is_named_while_no_rank_is_late(loop: str, train: Train) -> None:
    """Without a delay, the judge names no rank once it has compared enough steps."""
    ranks = train(HEALTHY_STEPS, f"{loop}-none")[f"{loop}-none"]

    assert ranks[0]["verdict"]["reason"] is None
    assert ranks[0]["verdict"]["late"] == []


def test_unchanged_script_is_timed_under_the_launcher(zygote: Zygote, tmp_path: Path) -> None:
    """`torchrun -m rank_probe train.py` pushes every rank's whole steps and its clean end.

    The late rank stands out even with real matrix products on shared cores.
    """
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    numbers = ("--steps", "12", "--step-seconds", "0.1", "--fault-rank", "1", "--delay", "0.1")
    script = ("demo/train.py", "--real-compute", "--fault", "forward", *numbers)

    def train(job: str) -> dict[str, Ranks]:
        command = (*launcher, "-m", "rank_probe", *script)
        return zygote.launch(tmp_path, *command, RANKSKEW_JOB_ID=job)

    def check(ranks: Ranks) -> None:
        late, victim = ranks[1]["stage_seconds"], ranks[0]["stage_seconds"]
        excess = {stage: late[stage] - victim[stage] for stage in late}

        assert max(excess, key=lambda stage: excess[stage]) == "forward"
        assert late["sync"] < victim["sync"]  # Both wait for a core.

    jobs = Jobs(train, "unchanged")
    jobs.check("unchanged", check)

    assert set(jobs["unchanged"]) == {0, 1}
    for rank in jobs["unchanged"].values():
        assert (rank["steps"], rank["finished"], rank["probe_errors"]) == (12, True, 0)
        assert rank["runtime_info"]["backend"] == "gloo"
