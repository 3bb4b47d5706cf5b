"""Tests of the integrations, each on its real framework with two gloo ranks."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from tests.rank_probe.forks import Zygote
from tests.rank_probe.jobs.parallel_arms import DELAY, EVERYWHERE, HEALTHY, asked_for
from tests.rank_probe.launch import PACKAGE, Jobs, Ranks, is_late, run

pytestmark = pytest.mark.jobs

# What every job does: evaluations and checkpoints come after each second step.
STEPS, EVERY = 5, 2
ACCUMULATED, ROWS, LENGTH, PADDING = 2, 2, 16, 4
# How many delays per stage a rank that is late everywhere has before the last release. Later ones
# are in no whole step.
TIMES = {
    **dict.fromkeys(("data", "forward", "backward"), STEPS),
    **dict.fromkeys(("optimizer", "other"), STEPS - 1),
    "checkpoint": STEPS // EVERY,
}


class Framework(NamedTuple):
    """The cases of a framework's job: in *cases*, a rank is late everywhere.

    The *others* have their own tests. The *first* case of a process pays the one-time costs.
    *work* is the number of rows, tokens and padding tokens in a step's batches.
    """

    cases: tuple[str, ...] = (EVERYWHERE,)
    evaluations: int = STEPS // EVERY
    others: tuple[str, ...] = ()
    first: str = "warm-up"
    arguments: tuple[str, ...] = ()
    work: tuple[int, int, int] | None = None


FRAMEWORKS = {
    "accelerate": Framework(others=("accumulate", "dispatch")),
    "deepspeed": Framework(
        tuple(f"zero{level}-{EVERYWHERE}" for level in (0, 1, 2)), evaluations=0, first="zero0-off"
    ),
    "lightning": Framework(
        evaluations=STEPS // EVERY + 1,  # One is the sanity check.
        others=("streamed", "accumulate", "several_optimizers", "raises"),
        arguments=("lightning.pytorch",),
        work=(4, 256, 64),
    ),
    "ray_train": Framework(evaluations=0, others=("barrier", "raises", "off"), first=EVERYWHERE),
    "transformers": Framework(
        others=("launched", "unchanged", "off"),
        work=(ACCUMULATED * ROWS, ACCUMULATED * ROWS * LENGTH, ACCUMULATED * ROWS * PADDING),
    ),
}
# A Ray cluster takes a minute to start, and meanwhile uses half of the processors.
SLOW = {"ray_train": [pytest.mark.nightly]}
EACH = [pytest.param(name, marks=SLOW.get(name, [])) for name in FRAMEWORKS]


def times_late(framework: str) -> dict[str, int]:
    """Return how often the late rank of *framework* is late in each stage."""
    return TIMES | {"eval": FRAMEWORKS[framework].evaluations}


Train = Callable[..., dict[str, Ranks]]
Runs = Callable[[str], Jobs]


@pytest.fixture(scope="module")
def train(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train each of *cases* as a job of its own; return each rank's last snapshot, by case."""

    def train(
        framework: str, *cases: str, launcher: Sequence[str] = (), ranks: int = 2
    ) -> dict[str, Ranks]:
        folder, module = tmp_path_factory.mktemp(framework), f"{PACKAGE}.{framework}_job"
        if framework == "ray_train":
            with TemporaryDirectory(prefix="ray") as short:  # The path of a socket has to be short.
                return run(folder, ["-m", module, short, *cases])
        job = [*launcher, module, *FRAMEWORKS[framework].arguments, *cases]
        # A probe that the launcher starts gets its job ID only once.
        own = {"CHECKPOINTS": str(folder), "RANKSKEW_JOB_ID": cases[0]}
        return zygote.run(folder, *job, ranks=ranks, **own)

    return train


@pytest.fixture(scope="module")
def runs(train: Train) -> Runs:
    """Return the jobs of a framework: one process a rank that trains once for every case."""
    known: dict[str, Jobs] = {}

    def of(framework: str) -> Jobs:
        if framework not in known:
            one = FRAMEWORKS[framework]
            every = dict.fromkeys((one.first, *one.cases, *one.others))
            known[framework] = Jobs(lambda *some: train(framework, *some), *every)
        return known[framework]

    return of


@pytest.mark.parametrize("framework", EACH)
def test_late_rank_and_its_stages_are_told(runs: Runs, framework: str) -> None:
    """Each delay counts in its own stage on the late rank, and as `sync` on the other rank.

    Each training starts and finishes the probe. A step ends with the optimizer's, however many
    batches it took. A training that raises is not finished, and RANK_PROBE=0 sends nothing.
    """
    jobs, known = runs(framework), FRAMEWORKS[framework]
    for case in known.cases:
        jobs.check(case, is_late(1, asked_for(times_late(framework))))
        for number, rank in jobs[case].items():
            assert (rank["steps"], rank["finished"], rank["probe_errors"]) == (STEPS, True, 0)
            assert rank["rank_info"]["local_rank"] == str(number)
            if known.work is not None:
                work = [rank[name] for name in ("samples", "tokens", "padding_tokens")]
                assert work == [STEPS * units for units in known.work]

    if "raises" in known.others:
        assert [rank["finished"] for rank in jobs["raises"].values()] == [False, False]
    assert [case for case in jobs if case.endswith("off")] == []


# Lightning steps once more with the last batch.
@pytest.mark.parametrize(
    ("framework", "stage", "steps"), [("accelerate", "data", 2), ("lightning", "forward", 3)]
)
def test_accumulated_batches_are_one_step(
    runs: Runs, framework: str, stage: str, steps: int
) -> None:
    """Under `accumulate` a step ends with the optimizer's, not with each batch."""
    jobs = runs(framework)
    assert {rank["steps"] for rank in jobs["accumulate"].values()} == {steps}
    jobs.check("accumulate", is_late(1, asked_for({stage: 2 * (STEPS // 2)})))


def test_dispatched_batches_are_waited_for(runs: Runs) -> None:
    """When rank 0 reads for all ranks, its reading is `data` and the others' wait is `sync`."""
    runs("accelerate").check("dispatch", is_late(0, {"data": 2 * STEPS * (DELAY + HEALTHY)}))


@pytest.mark.parametrize(("case", "times"), [("streamed", 1), ("several_optimizers", 3)])
def test_closure_is_not_the_optimizer(runs: Runs, case: str, times: int) -> None:
    """A forward pass inside an optimizer step is `forward`, even after a prefetched end.

    A batch that several optimizers train on is one step, after the first such batch.
    """
    jobs = runs("lightning")
    assert {rank["steps"] for rank in jobs[case].values()} == {STEPS}
    jobs.check(case, is_late(1, asked_for({"forward": times * STEPS})))


def test_other_package_of_lightning_and_its_own_launcher(zygote: Zygote, tmp_path: Path) -> None:
    """The callback also works with pytorch_lightning and under Lightning's own launcher."""
    job = (f"{PACKAGE}.lightning_job", "pytorch_lightning", "warm-up", EVERYWHERE)

    def launch(_: str) -> dict[str, Ranks]:
        return zygote.launch(tmp_path, *job, CHECKPOINTS=str(tmp_path))

    jobs = Jobs(launch, EVERYWHERE)
    jobs.check(EVERYWHERE, is_late(1, asked_for(times_late("lightning"))))


def test_probe_of_the_launcher_is_taken_over_by_lightning(train: Train) -> None:
    """Under `-m rank_probe` the callback adds its stages; the end of a fit is not the rank's."""
    launcher = ("rank_probe", "-m")

    def fit(case: str) -> dict[str, Ranks]:
        return train("lightning", case, case, launcher=launcher)

    jobs = Jobs(fit, EVERYWHERE)
    # What comes after the first fit's last release is in the second fit's first step.
    times = {
        stage: 2 * number + (stage in ("optimizer", "other"))
        for stage, number in times_late("lightning").items()
    }
    jobs.check(EVERYWHERE, is_late(1, asked_for(times)))
    ended = {(rank["steps"], rank["finished"]) for rank in jobs[EVERYWHERE].values()}
    assert ended == {(2 * STEPS, True)}


@pytest.mark.nightly
def test_barrier_of_ray_is_a_release(runs: Runs) -> None:
    """Waiting in Ray's barrier is `sync`; work before the last barrier is in the last step."""
    runs("ray_train").check("barrier", is_late(1, asked_for({"other": STEPS})))


def test_probe_that_a_launcher_started_goes_on_after_transformers(runs: Runs) -> None:
    """Under `-m rank_probe` the script may go on after training, so the end is the launcher's."""
    ended = [
        (rank["steps"], rank["finished"]) for rank in runs("transformers")["launched"].values()
    ]
    assert ended == [(STEPS, False)] * 2


def test_saves_of_an_unchanged_script_are_checkpoint(runs: Runs) -> None:
    """Without the callback, the Trainer's whole save is `checkpoint`, not only torch.save."""
    planted = asked_for({"checkpoint": TIMES["checkpoint"]})
    runs("transformers").check("unchanged", is_late(1, planted))


def test_forward_of_transformers_is_told_without_ddp(train: Train) -> None:
    """Without DDP, `forward` covers accumulated batches and the last one of a finished loader."""
    alone = train("transformers", "forward", ranks=1)["forward"][0]

    # Without the callback half of it is `other`.
    assert alone["stage_seconds"]["forward"] >= STEPS * DELAY
