"""Tests of sharded, pipelined, accumulating and compiled training: who is late, and where."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.ways import Arm, torchrun, verdict
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward, parallel, training_loop
from rank_probe.wire.stages import BACKWARD, FORWARD, OTHER, SYNC
from tests.rank_probe.launch import Jobs, Ranks, run
from tests.rank_probe.torch_hooks.parallel_job import ARMS, DELAY

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("peers")]

STEPS = 4
PLACES = ("forward", "backward", "optimizer")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Every arm on two ranks with the delay in each place, in one pair of processes."""

    def train(*cases: str) -> dict[str, Ranks]:
        arms, places = (dict.fromkeys(part) for part in zip(*map(split, cases), strict=True))
        module = "tests.rank_probe.torch_hooks.parallel_job"
        command = torchrun(2, module, ",".join(arms), str(STEPS), "1", "warm-up", *places)
        return run(tmp_path_factory.mktemp("ranks"), command)

    return Jobs(train, *(f"{arm}-{place}" for arm in ARMS for place in PLACES))


def split(case: str) -> tuple[str, str]:
    """Return the arm and the place of *case*."""
    arm, _, place = case.rpartition("-")
    return arm, place


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("job", ARMS)
def test_late_rank_and_its_stage_are_told(job: str, place: str, jobs: Jobs) -> None:
    """The delay is in its own stage of the late rank, and in the other one's `sync`."""
    arm = Arm(job, (), prefix=f"{job}-")

    def check(ranks: Ranks) -> None:
        row = verdict(arm, place, ranks)

        assert (row["waits least"], row["furthest ahead in"]) == (1, place)
        assert 0.75 * row["planted, ms"] < row["by, ms"] < 1.25e3 * DELAY

    jobs.check(arm.prefix + place, check)
    for rank in jobs[arm.prefix + place].values():
        assert rank["steps"] == STEPS
        assert rank["probe_errors"] == 0
        assert rank["finished"]


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    """An automatic timeline that sees FSDP, pipelines, backward and optimizers."""
    timeline = Timeline(automatic=True)
    modules: Any = (backward, parallel, training_loop)
    patches = [module.attach(timeline) for module in modules]
    yield timeline
    for patch in reversed(patches):
        patch.undo()


def wait_from(module: str, stream: Any, event: object) -> None:
    """Call the stream's wait as a function of *module* does."""
    exec("stream.wait_event(event)", {"__name__": module, "stream": stream, "event": event})


def test_fsdp_makes_the_compute_stream_wait_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of the current stream is `sync` if FSDP asks for it, and nobody else's is."""
    timeline = Timeline(automatic=True)
    seen: list[tuple[str, int]] = []

    class Stream:
        def wait_event(self, event: str) -> None:
            seen.append((event, timeline.state.stage))

        wait_stream = wait_event

    compute, communication = Stream(), Stream()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: compute)
    patches = parallel.attach(timeline)
    fsdp = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
    wait_from(fsdp, compute, "all-gather")
    wait_from(fsdp, communication, "gradients")
    wait_from("prefetcher", compute, "copy")
    patches.undo()
    wait_from(fsdp, compute, "detached")

    assert seen == [
        ("all-gather", SYNC),
        ("gradients", OTHER),
        ("copy", OTHER),
        ("detached", OTHER),
    ]


def test_several_optimizers_and_a_skipped_one_make_one_step(timeline: Timeline) -> None:
    """Two optimizers a step count once, and so does a step that GradScaler skips for one."""
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    scaler = torch.amp.GradScaler("cpu")
    for step in range(4):
        scale = float("inf") if step == 2 else 1.0  # The first optimizer's step is skipped then.
        losses = [models[0](torch.ones(1, 2)).sum() * scale, models[1](torch.ones(1, 2)).sum()]
        for loss in losses:
            scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    timeline.finish()

    assert timeline.steps.totals().steps == 4


def test_chunks_of_a_schedule_are_what_they_are_named(timeline: Timeline) -> None:
    """Without gradients a chunk is nothing that trains; a half of a backward is `backward`."""
    from torch.distributed.pipelining import stage

    seen: list[int] = []

    class Stage:
        @property
        def is_first(self) -> bool:
            seen.append(timeline.state.stage)
            raise NotImplementedError

    one_chunk: Any = stage._PipelineStageBase.forward_one_chunk
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients), pytest.raises(NotImplementedError):
            one_chunk(Stage(), 0, ())
    assert seen == [FORWARD, OTHER]

    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: seen.append(timeline.state.stage))
    halves: Any = stage
    halves.stage_backward_input([y.sum()], None, [x], iter(()))
    assert seen[2:] == [BACKWARD]
    assert timeline.state.stage == OTHER


def test_backward_of_megatron_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its schedules call the autograd engine themselves; benchmarks/ways.py runs the real ones."""
    name = "megatron.core.pipeline_parallel.schedules"
    schedules, timeline, seen = ModuleType(name), Timeline(automatic=True), list[int]()
    original: Any = lambda *_: seen.append(timeline.state.stage)  # noqa: E731 - to compare below
    monkeypatch.setattr(schedules, "custom_backward", original, raising=False)
    monkeypatch.setitem(sys.modules, name, schedules)
    patches = parallel.attach(timeline)
    schedules.custom_backward(torch.ones(1), None)
    patches.undo()

    assert seen == [BACKWARD]
    assert timeline.state.stage == OTHER
    assert schedules.custom_backward is original
