"""Tests of what wraps a model or calls its backward: the stages of each, in one process."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward, parallel, training_loop
from rank_probe.wire.stages import BACKWARD, EVAL, FORWARD, OTHER, SYNC

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("peers")]


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    """An automatic timeline that sees FSDP, pipelines, backward and optimizers."""
    timeline = Timeline(automatic=True)
    modules: Any = (backward, parallel, training_loop)
    patches = [module.attach(timeline) for module in modules]
    yield timeline
    for patch in reversed(patches):
        patch.undo()


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def fsdp1(model: nn.Module) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def fsdp2(model: nn.Module) -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


class Model(nn.Module):
    """Returns its loss beside the prediction, and keeps the stage that it runs in."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        self.stage: Callable[[], int] = lambda: timeline.state.stage
        self.ran_in = OTHER

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        self.ran_in = self.stage()
        prediction = self.head(rows)
        return prediction, nn.functional.mse_loss(prediction, torch.ones_like(prediction))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("wrapped", [DistributedDataParallel, fsdp1, fsdp2])
@pytest.mark.parametrize("gradients_off", [torch.no_grad, torch.inference_mode])
@pytest.mark.filterwarnings("ignore")  # FSDP1 warns that it has nothing to shard
def test_model_called_without_gradients_is_an_evaluation(
    timeline: Timeline, wrapped: Callable[[nn.Module], Any], gradients_off: Any
) -> None:
    """As nanoGPT does, whose batches are no loader's; its step ends where the others' end."""
    inner, rows = Model(timeline), torch.ones(1, 2)
    model = wrapped(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(2):
        model(rows)[1].backward()
        seen.append(inner.ran_in)
        optimizer.step()
        steps = timeline.steps.totals().steps
        model.eval()
        with gradients_off():
            model(rows)
        model.train()
        seen += [inner.ran_in, timeline.state.stage]
        assert timeline.steps.totals().steps == steps

    assert seen == [FORWARD, EVAL, EVAL] * 2


@pytest.mark.usefixtures("alone")
def test_model_in_eval_mode_is_an_evaluation_until_it_is_trained_so(timeline: Timeline) -> None:
    """Also with gradients on; a script that forgets to go back trains in forward nevertheless."""
    inner, rows, seen = Model(timeline), torch.ones(1, 2), list[int]()
    model = DistributedDataParallel(inner)
    model(rows)[1].backward()
    model.eval()
    model(rows)
    seen.append(inner.ran_in)
    for _ in range(2):
        loss = model(rows)[1]
        seen.append(inner.ran_in)
        loss.backward()

    assert seen == [EVAL, EVAL, FORWARD]


def mean_of(prediction: Tensor, _: Tensor) -> Tensor:
    """Return a loss that is computed after the model."""
    return prediction.mean()


def both(prediction: Tensor, loss: Tensor) -> Tensor:
    """Return a loss with a second part, as of experts."""
    return mean_of(prediction, loss) + loss


LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "the model's": (lambda _, loss: loss, OTHER),
    "the model's, divided and scaled": (lambda _, loss: torch.ones(1) * (loss / 4), OTHER),
    "computed after it": (mean_of, FORWARD),
    "part of it": (both, FORWARD),
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("case", LOSSES)
def test_what_a_loop_reads_before_its_backward_is_not_forward(
    timeline: Timeline, case: str
) -> None:
    """From the second step on, and only if nothing of forward can follow its model."""
    loss_of, expected = LOSSES[case]
    model, seen = DistributedDataParallel(Model(timeline)), list[int]()
    for _ in range(3):
        loss = loss_of(*model(torch.ones(4, 2)))
        seen.append(timeline.state.stage)  # Here it reads the next batch.
        loss.backward()

    assert seen == [FORWARD, expected, expected]


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
    """Its schedules call the autograd engine themselves; ways.py runs the real ones."""
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
