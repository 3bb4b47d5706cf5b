"""Tests of the patches on torch in one process: what they time, and that they leave no trace."""

import ctypes
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from rank_probe.guest.patches import Patches
from rank_probe.measure import events
from rank_probe.measure.device_clock import DeviceClock
from rank_probe.measure.timeline import Timeline
from rank_probe.probe import Probe
from rank_probe.torch_hooks import backward, parallel
from rank_probe.wire.stages import BACKWARD, DATA, EVAL, FORWARD, OPTIMIZER, OTHER, STAGES, SYNC
from tests.rank_probe.fakes import StubEvents, elsewhere
from tests.rank_probe.torch_hooks.conftest import attached

pytestmark = pytest.mark.usefixtures("peers")


class Spy(torch.autograd.Function):
    """Call something while forward and backward run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Callable[[], object]) -> Tensor:
        ctx.call = call
        call()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.call()
        return gradients[0], None


def loader(batches: int = 3, **options: Any) -> DataLoader[Any]:
    """Return a loader of *batches* batches of 4 rows."""
    return DataLoader(TensorDataset(torch.ones(4 * batches, 2)), batch_size=4, **options)


def train(timeline: Timeline, model: nn.Module | None = None, **options: Any) -> list[int]:
    """Run three steps of an ordinary loop; return the stages on the way."""
    seen: list[int] = []

    def look() -> None:
        seen.append(timeline.state.stage)

    model = model or nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (rows,) in loader(**options):
        look()
        loss = Spy.apply(model(rows), look).sum()  # type: ignore[no-untyped-call]
        loss.backward()
        look()
        optimizer.step()
        optimizer.zero_grad()
        look()
    return seen


STAGES_OF_LOOP = [FORWARD, FORWARD, BACKWARD, OTHER, OTHER] * 3


@pytest.mark.parametrize("workers", [0, 2])
def test_ordinary_loop_passes_through_its_stages(timeline: Timeline, workers: int) -> None:
    """Each part of an unchanged loop runs in the stage named after it, with loader workers too."""
    assert train(timeline, num_workers=workers) == STAGES_OF_LOOP
    totals = timeline.steps.totals()
    assert totals.steps == 3
    occurred = {STAGES[i] for i, ns in enumerate(totals.nanoseconds) if ns}
    assert occurred == {"data", "forward", "backward", "sync", "optimizer", "other"}


@pytest.mark.parametrize("gradients_off", [torch.no_grad, torch.inference_mode])
def test_loader_read_without_gradients_evaluates(timeline: Timeline, gradients_off: Any) -> None:
    """Validation between two epochs is `eval`, fetches included, and training after it is not."""
    train(timeline)
    data = timeline.steps.totals().spent[DATA]
    with gradients_off():
        for _ in loader():
            assert timeline.state.stage == EVAL
    assert timeline.steps.totals().spent[DATA] == data

    assert train(timeline) == STAGES_OF_LOOP
    assert timeline.steps.totals().steps == 6


@pytest.mark.parametrize("by_name", [True, False])
def test_closure_of_an_optimizer_runs_in_its_own_stages(timeline: Timeline, by_name: bool) -> None:
    """Forward and backward within step(closure) are what they are; LBFGS calls it several times."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    seen: list[int] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(torch.ones(4, 2)).square().sum()
        seen.append(timeline.state.stage)
        loss.backward()
        seen.append(timeline.state.stage)
        return loss

    def step() -> None:
        optimizer.step(closure=closure) if by_name else optimizer.step(closure)

    step()
    assert len(seen) >= 4
    assert set(zip(seen[::2], seen[1::2], strict=True)) == {(FORWARD, OPTIMIZER)}
    assert timeline.state.stage == OTHER
    elsewhere(step)  # A thread that trains another model.
    assert set(seen) == {FORWARD, OPTIMIZER, OTHER}


def test_detached_probe_notes_nothing() -> None:
    """Detaching removes the optimizer hooks too; test_compile.py checks the replacements."""
    probe = Probe(automatic=True, environment={})
    probe.attach()
    probe.detach()
    train(probe.timeline)

    assert probe.timeline.tape.take() == b""


def test_a_probe_that_breaks_does_not_break_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every boundary failing, training runs to its end and learns the same."""
    bare, model = nn.Linear(2, 1), nn.Linear(2, 1)
    model.load_state_dict(bare.state_dict())
    looks = len(train(Timeline(automatic=True), bare))
    with attached(Timeline(automatic=True)) as timeline:
        timeline.tape.follower = lambda _: 1 / 0
        monkeypatch.setattr(timeline.work, "_masks", None)
        assert len(train(timeline, model)) == looks

    assert timeline.state.stage == OTHER
    for name, learnt in bare.state_dict().items():
        assert model.state_dict()[name].equal(learnt)


def test_first_thread_that_trains_is_timed(timeline: Timeline) -> None:
    """The first thread to run backward is timed, and remains so once it completed a step."""
    elsewhere(lambda: train(timeline))
    timeline.tape.append(events.FINISH)
    assert timeline.steps.totals().steps == 3
    train(timeline)

    assert timeline.steps.totals().steps == 3


def test_thread_of_the_engine_is_not_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reentrant checkpointing calls backward within one, on CUDA on the engine's thread."""
    monkeypatch.setattr(backward, "running_graph", lambda: lambda: 7)
    with attached(Timeline(automatic=True)) as timeline:
        owner = timeline.tape.owner
        elsewhere(torch.ones(1, requires_grad=True).sum().backward)
        assert timeline.tape.owner == owner


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("wrapped", [nn.Module.train, DistributedDataParallel])
def test_step_has_seven_events(cudart: ctypes.CDLL, wrapped: Callable[[nn.Module], Any]) -> None:
    """One event marks each stage's start; DDP's checks and one-time work in forward add none."""
    events, counts = StubEvents(cudart, in_python=False), list[int]()
    with attached(Timeline(automatic=True)) as timeline:
        clock = DeviceClock(events, at_once=0)
        timeline.after_first_step = lambda: timeline.also_tell(clock.boundary)
        model = wrapped(nn.Linear(2, 1))
        for batches in (9, 9, 19):
            before = events.recorded
            train(timeline, model, batches=batches)
            counts.append(events.recorded - before)

    assert counts[2] - counts[1] == 10 * 7


def fsdp1(model: nn.Module) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def fsdp2(model: nn.Module) -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


ROWS = torch.ones(1, 2)


class Model(nn.Module):
    """Returns its loss beside the prediction, and keeps the stage that it runs in."""

    ran_in = OTHER

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        self.timeline = timeline

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        self.ran_in = self.timeline.state.stage
        prediction = self.head(rows)
        return prediction, nn.functional.mse_loss(prediction, torch.ones_like(prediction))


@pytest.mark.jobs
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("wrapped", [DistributedDataParallel, fsdp1, fsdp2])
@pytest.mark.parametrize("gradients_off", [torch.no_grad, torch.inference_mode])
@pytest.mark.filterwarnings("ignore")  # FSDP1 warns that it has nothing to shard
def test_model_called_without_gradients_is_an_evaluation(
    timeline: Timeline, wrapped: Callable[[nn.Module], Any], gradients_off: Any
) -> None:
    """As nanoGPT does, whose batches are no loader's; its step ends where the others' end."""
    inner, seen = Model(timeline), []
    model = wrapped(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(ROWS)[1].backward()
        seen.append(inner.ran_in)
        optimizer.step()
        steps = timeline.steps.totals().steps
        model.eval()
        with gradients_off():
            model(ROWS)
        model.train()
        seen += [inner.ran_in, timeline.state.stage]
        assert timeline.steps.totals().steps == steps

    assert seen == [FORWARD, EVAL, EVAL] * 2
    assert timeline.exchanges_apart == (wrapped is not DistributedDataParallel)


@pytest.mark.usefixtures("alone")
def test_model_in_eval_mode_is_an_evaluation_until_it_is_trained_so(timeline: Timeline) -> None:
    """Also with gradients on; a script that forgets to go back trains in forward nevertheless."""
    inner, seen = Model(timeline), list[int]()
    model = DistributedDataParallel(inner)
    model(ROWS)[1].backward()
    model.eval()
    for is_trained in (False, True, True):
        loss = model(ROWS)[1]
        seen.append(inner.ran_in)
        if is_trained:
            loss.backward()

    assert seen == [EVAL, EVAL, FORWARD]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("loss_of", "expected"),
    [
        pytest.param(lambda _, loss: loss, OTHER, id="the model's"),
        pytest.param(lambda _, loss: torch.ones(1) * (loss / 4), OTHER, id="divided and scaled"),
        pytest.param(lambda prediction, _: prediction.mean(), FORWARD, id="computed after it"),
        pytest.param(lambda prediction, loss: prediction.mean() + loss, FORWARD, id="part of it"),
    ],
)
def test_what_a_loop_reads_before_its_backward_is_not_forward(
    timeline: Timeline, loss_of: Callable[[Tensor, Tensor], Tensor], expected: int
) -> None:
    """From the second step on, and only if nothing of forward can follow its model."""
    model, seen = DistributedDataParallel(Model(timeline)), list[int]()
    for _ in range(3):
        loss = loss_of(*model(torch.ones(4, 2)))
        seen.append(timeline.state.stage)  # Here it reads the next batch.
        loss.backward()

    assert seen == [FORWARD, expected, expected]


def test_zero_waits_for_the_streams_on_which_it_reduces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlapping ZeRO on CUDA waits in `sync`; its collectives run on streams of their own."""
    timeline, patches, seen = Timeline(automatic=True), Patches(), list[int]()

    class Optimizer:
        def independent_gradient_partition_epilogue(self) -> None:
            seen.append(timeline.state.stage)

    parallel._zero(timeline, patches, SimpleNamespace(DeepSpeedZeroOptimizer=Optimizer))
    Optimizer().independent_gradient_partition_epilogue()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    Optimizer().independent_gradient_partition_epilogue()

    assert (seen, timeline.exchanges_apart) == ([OTHER, SYNC], True)


def test_fsdp_makes_the_compute_stream_wait_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of the current stream is `sync` if FSDP asks for it, and nobody else's is."""
    fsdp, seen = "torch.distributed.fsdp._fully_shard._fsdp_param_group", dict[str, int]()

    class Stream:
        def wait_event(self, event: str) -> None:
            seen[event] = timeline.state.stage

        wait_stream = wait_event

    def wait(module: str, stream: Stream, event: str) -> None:
        exec("stream.wait_event(event)", {"__name__": module, "stream": stream, "event": event})

    compute = Stream()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: compute)
    with attached(Timeline(automatic=True)) as timeline:
        wait(fsdp, compute, "all-gather")
        wait("torch.distributed._composable.fsdp._fsdp_collectives", compute, "before 2.6")
        wait(fsdp, Stream(), "gradients")
        wait("prefetcher", compute, "copy")
    wait(fsdp, compute, "detached")

    waits = dict.fromkeys(("all-gather", "before 2.6"), SYNC)
    assert seen == waits | dict.fromkeys(("gradients", "copy", "detached"), OTHER)


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


@pytest.mark.jobs
def test_chunk_of_a_schedule_without_gradients_trains_nothing(timeline: Timeline) -> None:
    """It is part of an evaluation; test_loops.py runs real schedules."""
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

    assert timeline.state.stage == OTHER


def test_backward_of_megatron_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its schedules call the autograd engine themselves; ways.py runs the real ones."""
    name = "megatron.core.pipeline_parallel.schedules"
    schedules, seen = ModuleType(name), list[int]()
    timeline = Timeline(automatic=True)
    original: Any = lambda *_: seen.append(timeline.state.stage)  # noqa: E731 - to compare below
    monkeypatch.setattr(schedules, "custom_backward", original, raising=False)
    monkeypatch.setitem(sys.modules, name, schedules)
    with attached(timeline):
        schedules.custom_backward(torch.ones(1), None)

    assert seen == [BACKWARD]
    assert timeline.state.stage == OTHER
    assert schedules.custom_backward is original
