"""Tests of the integrations, each on its real framework with two gloo ranks."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from tests.rank_probe.launch import PACKAGE, Jobs, Ranks, is_late, run, torchrun

pytestmark = pytest.mark.jobs

# The jobs of DeepSpeed, Ray Train and transformers, which import these.
STEPS, DELAY = 7, 0.15
ACCUMULATED, ROWS, LENGTH, PADDING = 2, 2, 16, 4
EVERY = 3  # steps between checkpoints
EVALUATED = 2  # steps between the evaluations, and the checkpoints, of transformers
# Those of Accelerate and Lightning.
BATCHES, SHORT_DELAY, HEALTHY = 6, 0.08, 0.004
SERVED, SERVED_LATER = 20, 0.04
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


class Framework(NamedTuple):
    """A job's cases: by the late stage, how often its rank was slow before the last release.

    What comes after that is in no whole step. The *others* have tests of their own. The *first* of
    a process pays for what is done once.
    """

    steps: int
    delay: float
    times_late: dict[str, int]
    others: tuple[str, ...] = ()
    first: str = "warm-up"


FRAMEWORKS = {
    # In `eval` and `checkpoint` it is twice as late. The last release is the last evaluation's.
    "accelerate": Framework(
        BATCHES,
        SHORT_DELAY,
        dict.fromkeys(("data", "forward", "backward", "optimizer", "other"), BATCHES)
        | {"eval": 2 * 3, "checkpoint": 2 * 2},
        ("accumulate", "dispatch"),
    ),
    "deepspeed": Framework(
        STEPS,
        DELAY,
        {
            f"zero{level}-{stage}": times
            for level in (0, 1, 2)
            for stage, times in (
                *(("data", STEPS), ("forward", STEPS), ("backward", STEPS)),
                # Without ZeRO nothing is exchanged after the last update.
                *(("optimizer", STEPS - (level == 0)), ("other", STEPS - 1)),
                ("checkpoint", STEPS // EVERY),
            )
        },
        first="zero0-off",
    ),
    # In `eval`, of which one is the sanity check, and `checkpoint` it is twice as late.
    "lightning": Framework(
        BATCHES,
        SHORT_DELAY,
        dict.fromkeys(("data", "forward", "backward"), BATCHES)
        | dict.fromkeys(("optimizer", "other"), BATCHES - 1)
        | {"eval": 2 * 3, "checkpoint": 2 * 2},
        ("streamed", "accumulate", "two_evaluations", "two_optimizers", "raises"),
    ),
    "ray_train": Framework(
        STEPS,
        DELAY,
        dict.fromkeys(("data", "forward", "backward"), STEPS)
        | dict.fromkeys(("optimizer", "other"), STEPS - 1)
        | {"checkpoint": STEPS // EVERY},
        ("barrier", "raises", "off"),
        first="data",
    ),
    "transformers": Framework(
        STEPS,
        DELAY,
        dict.fromkeys(("data", "forward", "backward"), STEPS)
        | dict.fromkeys(("optimizer", "other"), STEPS - 1)
        # Twice as late in `checkpoint`: the first rank writes more.
        | {"eval": STEPS // EVALUATED, "checkpoint": 2 * (STEPS // EVALUATED)},
        ("launched", "unchanged", "off"),
    ),
    "serving": Framework(SERVED, SERVED_LATER, {}, ("sharded", "idle", "independent")),
}
# A cluster takes a minute to start, and half of the processors meanwhile.
SLOW = {"ray_train": [pytest.mark.nightly]}


def launched(
    framework: str, folder: Path, *cases: str, launcher: Sequence[str] = TORCHRUN
) -> dict[str, Ranks]:
    """Train each of *cases* as a job of its own; return each rank's last snapshot, by case."""
    module = ["-m", f"{PACKAGE}.{framework}_job"]
    if framework == "ray_train":
        with TemporaryDirectory(prefix="ray") as short:  # The path of a socket has to be short.
            return run(folder, [*module, short, *cases])
    first = {"deepspeed": [f"{folder}/out"], "transformers": [f"{folder}/out"]}
    first["lightning"] = ["lightning.pytorch"]
    arguments = [*launcher, *module, *first.get(framework, []), *cases]
    # A probe that its launcher started is named once.
    return run(folder, arguments, CHECKPOINTS=str(folder), RANKSKEW_JOB_ID=cases[0])


Runs = Callable[[str], Jobs]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return the jobs of a framework: one process a rank that trains once for every case."""
    known: dict[str, Jobs] = {}

    def of(framework: str) -> Jobs:
        if framework not in known:
            _, _, times_late, others, first = FRAMEWORKS[framework]
            cases = dict.fromkeys((first, *times_late, *others))
            known[framework] = Jobs(
                lambda *some: launched(framework, tmp_path_factory.mktemp(framework), *some), *cases
            )
        return known[framework]

    return of


@pytest.mark.parametrize(
    ("framework", "case"),
    [
        pytest.param(name, case, marks=SLOW.get(name, []))
        for name, framework in FRAMEWORKS.items()
        for case in framework.times_late
    ],
)
def test_late_rank_and_its_stage_are_told(runs: Runs, framework: str, case: str) -> None:
    """The delay is in its own stage on the late rank, and the other's extra time is `sync`."""
    _, delay, times_late, *_ = FRAMEWORKS[framework]
    runs(framework).check(case, is_late(1, case.rpartition("-")[2], times_late[case] * delay))


@pytest.mark.parametrize(
    "framework", [pytest.param(name, marks=SLOW.get(name, [])) for name in FRAMEWORKS]
)
def test_every_step_is_counted_and_every_run_ends_cleanly(runs: Runs, framework: str) -> None:
    """Each training starts the probe anew and finishes it, and nothing of ours fails meanwhile.

    A step ends with the optimizer's, however many batches it took, or with what `step` says.
    """
    steps, _, times_late, others, _ = FRAMEWORKS[framework]
    for case in times_late or others:
        for number, rank in runs(framework)[case].items():
            assert rank["steps"] == steps
            assert rank["finished"]
            assert rank["probe_errors"] == 0
            if framework == "ray_train":
                assert rank["rank_info"]["local_rank"] == str(number)


@pytest.mark.parametrize(
    ("framework", "case"),
    [
        ("deepspeed", "zero0-off"),
        ("transformers", "off"),
        pytest.param("ray_train", "off", marks=SLOW["ray_train"]),
    ],
)
def test_turned_off_it_sends_nothing(runs: Runs, framework: str, case: str) -> None:
    """With RANK_PROBE=0 the integration does nothing at all."""
    assert case not in runs(framework)


@pytest.mark.parametrize(("framework", "stage"), [("accelerate", "data"), ("lightning", "forward")])
def test_accumulated_batches_are_one_step(runs: Runs, framework: str, stage: str) -> None:
    """Under `accumulate` a step ends with the optimizer's, not with each batch."""
    jobs = runs(framework)
    assert {rank["steps"] for rank in jobs["accumulate"].values()} == {BATCHES // 2}
    jobs.check("accumulate", is_late(1, stage, BATCHES * SHORT_DELAY))


def test_dispatched_batches_are_waited_for(runs: Runs) -> None:
    """Where rank 0 reads for all, its reading is `data` and what the others wait is `sync`."""
    seconds = 2 * BATCHES * (SHORT_DELAY + HEALTHY)
    runs("accelerate").check("dispatch", is_late(0, "data", seconds))


def test_what_deepspeeds_engine_does_itself_has_a_stage(runs: Runs) -> None:
    """Flattening and averaging gradients is backward, and partitioning the update optimizer."""

    def check(ranks: Ranks) -> None:
        for rank in ranks.values():
            seconds = rank["stage_seconds"]
            assert seconds["other"] < 0.1 * sum(seconds.values())

    for case in FRAMEWORKS["deepspeed"].times_late:
        if not case.endswith("other"):
            runs("deepspeed").check(case, check)


@pytest.mark.parametrize(
    ("framework", "samples", "tokens", "padding"),
    [
        ("lightning", BATCHES * 4, BATCHES * 256, BATCHES * 64),
        *(
            ("transformers", rows, rows * LENGTH, rows * PADDING)
            for rows in (STEPS * ACCUMULATED * ROWS,)
        ),
    ],
)
def test_work_units_come_from_the_batch(
    runs: Runs, framework: str, samples: int, tokens: int, padding: int
) -> None:
    """Rows, tokens and padding of the training batches are counted; evaluation's are not."""
    for rank in runs(framework)["data"].values():
        assert (rank["samples"], rank["tokens"]) == (samples, tokens)
        assert rank["padding_tokens"] == padding


def test_closure_is_not_the_optimizer(runs: Runs) -> None:
    """Forward within an optimizer's step is `forward` each time, also after a prefetched end."""
    jobs = runs("lightning")
    jobs.check("two_evaluations", is_late(1, "forward", 2 * BATCHES * SHORT_DELAY))
    jobs.check("streamed", is_late(1, "forward", BATCHES * SHORT_DELAY))


def test_two_optimizers_are_one_step(runs: Runs) -> None:
    """A batch that several optimizers train on is one step, after the first such batch."""
    jobs = runs("lightning")
    assert {rank["steps"] for rank in jobs["two_optimizers"].values()} == {BATCHES}
    jobs.check("two_optimizers", is_late(1, "forward", 2 * BATCHES * SHORT_DELAY))


@pytest.mark.parametrize(
    "framework", ["lightning", pytest.param("ray_train", marks=SLOW["ray_train"])]
)
def test_exception_leaves_no_clean_end(runs: Runs, framework: str) -> None:
    """It passes through; a run that raised is not marked finished, and a later one is timed."""
    assert not any(rank["finished"] for rank in runs(framework).get("raises", {}).values())


def test_other_package_of_lightning_and_its_own_launcher(tmp_path: Path) -> None:
    """pytorch_lightning takes the callback too, and ranks that Lightning starts know themselves."""
    job = ["-m", f"{PACKAGE}.lightning_job", "pytorch_lightning", "forward"]
    jobs = Jobs(lambda *_: run(tmp_path, job, CHECKPOINTS=str(tmp_path)), "forward")

    jobs.check("forward", is_late(1, "forward", BATCHES * SHORT_DELAY))


def test_probe_of_the_launcher_is_taken_over_by_lightning(tmp_path: Path) -> None:
    """Under `-m rank_probe` the callback adds its stages, and a fit's end is not the rank's."""
    fit = partial(launched, "lightning", tmp_path, "eval", launcher=(*TORCHRUN, "-m", "rank_probe"))
    jobs = Jobs(fit, "eval")

    # The evaluation after the first fit's last step is in the second fit's first one.
    times = 2 * (FRAMEWORKS["lightning"].times_late["eval"] + 1)
    jobs.check("eval", is_late(1, "eval", times * SHORT_DELAY))
    ended = {(rank["steps"], rank["finished"]) for rank in jobs["eval"].values()}
    assert ended == {(2 * BATCHES, True)}


@pytest.mark.nightly
def test_barrier_of_ray_is_a_release(runs: Runs) -> None:
    """Waiting in it is `sync`, and what precedes the last one is in the last step."""
    runs("ray_train").check("barrier", is_late(1, "other", STEPS * DELAY))


def test_probe_that_a_launcher_started_goes_on_after_transformers(runs: Runs) -> None:
    """Under `-m rank_probe` the script may go on after training, so the end is the launcher's."""
    ended = [
        (rank["steps"], rank["finished"]) for rank in runs("transformers")["launched"].values()
    ]
    assert ended == [(STEPS, False)] * 2


def test_saves_of_an_unchanged_script_are_checkpoint(runs: Runs) -> None:
    """Without the callback, and whatever in them takes long: not all of it is torch.save."""
    # The ranks meet after the last one.
    times = FRAMEWORKS["transformers"].times_late["checkpoint"] + 2
    runs("transformers").check("unchanged", is_late(1, "checkpoint", times * DELAY))


def test_forward_of_transformers_is_told_without_ddp(tmp_path: Path) -> None:
    """Also of accumulated batches, and of the last one of an epoch, after a loader at its end."""
    job = f"{PACKAGE}.transformers_job"
    alone = torchrun(tmp_path, job, f"{tmp_path}/out", "forward", ranks=1)["forward"][0]

    # Without the callback half of it is `other`.
    assert alone["stage_seconds"]["forward"] == pytest.approx(STEPS * DELAY, rel=0.3)


def test_slow_shard_is_told_from_the_one_that_waits(runs: Runs) -> None:
    """Batches of unequal length cost both shards the same, so only the slow one stands out."""
    runs("serving").check("sharded", is_late(1, "compute", SERVED * SERVED_LATER))


def test_idle_queue_blames_nobody(runs: Runs) -> None:
    """The rank that takes requests in waits for them in `sync`, as the others wait for it."""
    seconds = SERVED * SERVED_LATER

    def is_even(ranks: Ranks) -> None:
        first, second = (ranks[rank]["stage_seconds"] for rank in (0, 1))

        assert first["sync"] > seconds
        for stage in ("sync", "compute"):
            assert second[stage] == pytest.approx(first[stage], abs=0.1 * seconds)

    runs("serving").check("idle", is_even)


def test_independent_replicas_have_no_wait_to_judge_by(runs: Runs) -> None:
    """Replicas that wait for nobody show what each batch costs, and no `sync` at all."""
    for rank in runs("serving")["independent"].values():
        assert "compute" in rank["stage_seconds"]
        assert "sync" not in rank["stage_seconds"]
