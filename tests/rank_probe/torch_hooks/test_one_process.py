"""Tests of the patches on torch in one process: what they time, and that they leave no trace."""

import importlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import ProcessGroup, Store
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.probe import Probe
from rank_probe.wire.stages import BACKWARD, DATA, EVAL, FORWARD, OPTIMIZER, OTHER, STAGES
from tests.rank_probe.fakes import elsewhere
from tests.rank_probe.torch_hooks.hooked import attached

pytestmark = pytest.mark.usefixtures("peers")


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    with attached(Timeline(automatic=True)) as timeline:
        yield timeline


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
def test_loader_read_without_gradients_is_an_evaluation(
    timeline: Timeline, gradients_off: Any
) -> None:
    """Validation between two epochs is `eval`, fetches included, and training after it is not."""
    train(timeline)
    data = timeline.steps.totals().spent[DATA]
    with gradients_off():
        for _ in loader():
            assert timeline.state.stage == EVAL
    assert timeline.steps.totals().spent[DATA] == data

    assert train(timeline) == STAGES_OF_LOOP
    assert timeline.steps.totals().steps == 6


def test_batches_fetched_without_gradients_may_be_for_training(timeline: Timeline) -> None:
    """A loop that fetches under no_grad is taken for an evaluation until its first backward."""
    batches, seen = iter(loader()), []
    model = nn.Linear(2, 1)
    for _ in range(3):
        with torch.no_grad():
            (rows,) = next(batches)
        seen.append(timeline.state.stage)
        model(rows).sum().backward()

    assert seen == [EVAL, FORWARD, FORWARD]


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


def test_detaching_leaves_torch_as_it_was() -> None:
    """Every attribute and hook is put back; meanwhile what was replaced is pickled by its name."""
    operator = torch.ops._c10d_functional.wait_tensor
    importlib.import_module("torch._dynamo")  # It replaces torch.manual_seed.
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    saver: Any = importlib.import_module("torch.distributed.checkpoint.state_dict_saver")
    owners: tuple[Any, ...] = (
        *(torch, torch.autograd, torch.serialization, dist, checkpoint, saver),
        *(dist.distributed_c10d, dist.device_mesh, dist.device_mesh.DeviceMesh, dist.Work),
        *(ProcessGroup, Store, torch._C.Future, operator, operator.default),
        *(DistributedDataParallel, DataLoader, _BaseDataLoaderIter),
    )
    before = [dict(vars(owner)) for owner in owners]
    probe = Probe(automatic=True, environment={})
    probe.attach()
    replaced = [
        any(vars(owner)[name] is not value for name, value in attributes.items())
        for owner, attributes in zip(owners, before, strict=True)
    ]
    pickled = [torch.save, saver.save, dist.init_process_group]
    assert [pickle.loads(pickle.dumps(each)) for each in pickled] == pickled
    probe.detach()
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()

    assert all(replaced), [owner for owner, was in zip(owners, replaced, strict=True) if not was]
    for owner, attributes in zip(owners, before, strict=True):
        assert all(vars(owner)[name] is value for name, value in attributes.items()), owner
    assert probe.timeline.steps.totals().spent[OPTIMIZER] == 0


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
    """From its first backward on; once a step was seen, its thread stays the one."""
    elsewhere(lambda: train(timeline))
    timeline.tape.append(events.FINISH)
    assert timeline.steps.totals().steps == 3
    train(timeline)

    assert timeline.steps.totals().steps == 3
