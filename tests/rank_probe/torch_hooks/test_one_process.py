"""Tests of the patches on torch in one process: what they time, and that they leave no trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward as torch_backward
from rank_probe.torch_hooks import collectives, process_group, training_loop
from rank_probe.wire.stages import BACKWARD, DATA, EVAL, FORWARD, OPTIMIZER, OTHER, STAGES, SYNC
from tests.rank_probe.fake_time import elsewhere

pytestmark = pytest.mark.usefixtures("peers")


@contextmanager
def attached(automatic: Timeline) -> Iterator[Timeline]:
    """Have every patch in torch while the block runs."""
    modules = (torch_backward, collectives, training_loop)
    patches = [module.attach(automatic) for module in modules]
    try:
        yield automatic
    finally:
        while patches:
            patches.pop().undo()


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


def train(timeline: Timeline, **options: Any) -> list[int]:
    """Run three steps of an ordinary loop; return the stages on the way."""
    seen: list[int] = []

    def look() -> None:
        seen.append(timeline.state.stage)

    model = nn.Linear(2, 1)
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
    data = timeline.steps.spent()[DATA]
    with gradients_off():
        for _ in loader():
            assert timeline.state.stage == EVAL
    assert timeline.steps.spent()[DATA] == data

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


def test_teacher_without_gradients_is_part_of_training(timeline: Timeline) -> None:
    """Frozen parts, and models that are only ever evaluated, leave a training step in `forward`."""
    teacher, model = nn.Linear(2, 1).eval(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].eval()
    for (rows,) in loader():
        with torch.no_grad():
            teacher(rows)
        assert timeline.state.stage == FORWARD
        model(rows).sum().backward()


def test_loop_is_in_forward_from_its_first_batch_to_its_last(timeline: Timeline) -> None:
    """Starting a loader is no batch yet, and an exhausted one leaves no forward behind."""
    batches = iter(loader())
    assert timeline.state.stage == OTHER
    for _ in batches:
        assert timeline.state.stage == FORWARD

    assert timeline.state.stage == OTHER


def test_optimizer_runs_in_its_own_stage(timeline: Timeline) -> None:
    """The step of any optimizer is `optimizer`, whichever class it is of."""
    seen: list[int] = []

    class Noting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            seen.append(timeline.state.stage)

    optimizer = Noting([torch.zeros(1, requires_grad=True)], lr=0.1)
    optimizer.step()
    optimizer.step(None)

    assert seen == [OPTIMIZER] * 2
    assert timeline.state.stage == OTHER


def theirs() -> None:
    raise ArithmeticError("theirs")


def losses() -> Iterator[Tensor]:
    theirs()
    yield torch.ones(1)


def test_backward_that_raises_leaves_the_clock_right(timeline: Timeline) -> None:
    """The user's exception, of a node or a generator, passes, and what follows is not backward."""
    x = torch.ones(1, requires_grad=True) * 2
    x.register_hook(lambda _: theirs())
    for roots in (x, losses()):
        with pytest.raises(ArithmeticError, match="theirs"):
            torch.autograd.backward(roots)  # type: ignore[arg-type]  # any iterable is taken

        assert timeline.state.stage == OTHER
        assert len(timeline.state.frames) == 0


def test_gradients_are_what_they_were(timeline: Timeline) -> None:
    """Hooks on the graph change no value, for several roots, kept graphs and the user's hooks."""
    x = torch.tensor([2.0], requires_grad=True)
    seen: list[Tensor] = []
    x.register_hook(seen.append)
    y, z = x * 3, x * x
    torch.autograd.backward([y, z], retain_graph=True)
    torch.autograd.backward(tensors=[y, z])

    assert x.grad is not None
    assert x.grad.item() == 2 * (3 + 4)
    assert sum(gradient.item() for gradient in seen) == x.grad.item()
    assert timeline.steps.spent()[BACKWARD] > 0


def test_kept_graph_collects_no_hooks(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backward takes its hook off the graph again, also when it is run many times."""
    removed: list[object] = []

    class Handle:
        def remove(self) -> None:
            removed.append(self)

    monkeypatch.setattr(torch_backward.Cut, "hook_roots", lambda *_: [Handle()])
    y = (torch.ones(1, requires_grad=True) * 2).sum()
    y.backward(retain_graph=True)
    y.backward()

    assert len(removed) == 2


class Job:
    """A model whose backward is seen to be cut, as DDP's would be: with the last gradient."""

    def __init__(self, timeline: Timeline) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        self.stages_of_wait: list[int] = []
        self._timeline = timeline
        self._gradients = 0
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self._gradient)

    def _gradient(self, _: Tensor) -> None:
        self._gradients += 1
        if self._gradients % len(list(self.model.parameters())) == 0:
            torch.autograd.Variable._execution_engine.queue_callback(self._wait)

    def _wait(self) -> None:
        self.stages_of_wait.append(self._timeline.state.stage)

    def hooks(self) -> list[int]:
        """Return how many hooks each parameter has."""
        return [len(p._post_accumulate_grad_hooks or ()) for p in self.model.parameters()]

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.model(torch.ones(4, 2)).sum().backward()


def test_one_parameter_takes_over_the_cut_and_it_stays_exact(timeline: Timeline) -> None:
    """After a few backwards one standing hook does it; what follows the gradients is still sync."""
    job = Job(timeline)
    before = job.hooks()
    job.step(torch_backward.ROOT_CUTS + 3)

    assert sum(job.hooks()) == sum(before) + 1
    assert set(job.stages_of_wait) == {SYNC}


def test_parameter_that_takes_no_part_gives_the_cut_back(timeline: Timeline) -> None:
    """Freezing it costs one backward its cut; then the root has it again, for good."""
    job = Job(timeline)
    job.step(torch_backward.ROOT_CUTS + 1)
    hooked = next(
        p for p, hooks in zip(job.model.parameters(), job.hooks(), strict=True) if hooks > 1
    )
    hooked.requires_grad_(False)
    job.step()
    timeline.steps.fold()
    waited = timeline.steps.spent()[SYNC]
    job.step()

    assert max(job.hooks()) == 1
    assert timeline.steps.spent()[SYNC] > waited


def test_backward_within_a_backward_keeps_the_cut_at_the_root(timeline: Timeline) -> None:
    """Reentrant checkpointing ends inner backwards early; no parameter is left to tell the end."""
    job, head = Job(timeline), nn.Linear(1, 1)
    rows = torch.ones(4, 2, requires_grad=True)
    for _ in range(torch_backward.ROOT_CUTS + 2):
        head(checkpoint(job.model, rows, use_reentrant=True)).sum().backward()

    assert max(job.hooks()) == 1
    assert not any(parameter._post_accumulate_grad_hooks for parameter in head.parameters())
    assert timeline.state.stage == OTHER


def test_rank_without_peers_is_not_cut(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for nobody: no hook is left anywhere, and all of its backward is `backward`."""
    monkeypatch.setattr(process_group, "has_peers", lambda: False)
    job = Job(timeline)
    before = job.hooks()
    job.step(torch_backward.ROOT_CUTS + 1)

    assert job.hooks() == before
    assert set(job.stages_of_wait) == {BACKWARD}
    assert timeline.steps.spent()[SYNC] == 0


def test_backward_is_cut_as_soon_as_there_are_peers(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may create its process group after its first backward."""
    monkeypatch.setattr(process_group, "has_peers", lambda: False)
    job = Job(timeline)
    job.step(2)
    monkeypatch.setattr(process_group, "has_peers", lambda: True)
    timeline.wait_for_peers()
    job.step()
    timeline.steps.fold()
    job.step(torch_backward.ROOT_CUTS + 1)

    assert job.stages_of_wait == [BACKWARD] * 3 + [SYNC] * (torch_backward.ROOT_CUTS + 1)
    assert max(job.hooks()) == 2


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


def test_graph_without_a_plain_parameter_stays_at_the_root(timeline: Timeline) -> None:
    """A leaf made anew for each batch can hold no standing hook."""
    for _ in range(torch_backward.ROOT_CUTS + 2):
        leaf = torch.ones(2, requires_grad=True)
        (leaf * 2).sum().backward()
        assert not leaf._post_accumulate_grad_hooks


def test_detaching_leaves_torch_as_it_was() -> None:
    """Every attribute and hook is put back."""
    places: list[tuple[Any, str]] = [
        (torch.autograd, "backward"),
        (torch.distributed.Work, "wait"),
        (torch.distributed, "_broadcast_coalesced"),
        (DistributedDataParallel, "forward"),
        (DataLoader, "__iter__"),
        (_BaseDataLoaderIter, "__next__"),
    ]
    before = [getattr(owner, name) for owner, name in places]
    with attached(Timeline(automatic=True)) as timeline:
        during = [getattr(owner, name) for owner, name in places]
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()

    assert all(a is not b for a, b in zip(before, during, strict=True))
    assert [getattr(owner, name) for owner, name in places] == before
    assert timeline.steps.spent()[OPTIMIZER] == 0


def test_a_probe_that_breaks_does_not_break_the_loop(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every boundary failing, training runs to its end and data is unchanged."""
    timeline.tape.follower = lambda _: 1 / 0
    monkeypatch.setattr(timeline.work, "_masks", None)
    train(timeline)

    assert timeline.state.stage == OTHER


def test_losses_from_a_generator_have_their_gradients(timeline: Timeline) -> None:
    """torch takes any iterable of roots, and it can be read only once."""
    weight = nn.Parameter(torch.ones(3))
    for _ in range(torch_backward.ROOT_CUTS + 2):
        weight.grad = None
        torch.autograd.backward((weight * k).sum() for k in (1.0, 2.0))  # type: ignore[arg-type]

        assert weight.grad is not None
        assert weight.grad.tolist() == [3.0, 3.0, 3.0]


def test_exception_in_a_backward_leaves_the_parameter_its_hook(timeline: Timeline) -> None:
    """It says nothing about where the next one can be cut."""
    job = Job(timeline)
    job.step(torch_backward.ROOT_CUTS + 1)
    handle = next(job.model.parameters()).register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        job.step()
    handle.remove()
    job._gradients = 0
    timeline.steps.fold()
    job.step(2)

    assert max(job.hooks()) == 2
    assert set(job.stages_of_wait) == {SYNC}


def test_argument_that_a_later_torch_adds_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe knows nothing of backward's signature, in either way to cut it."""
    original, seen = torch.autograd.backward, []

    def later(*args: Any, new: int, **kwargs: Any) -> None:
        seen.append(new)
        original(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", later)
    weight: Any = nn.Parameter(torch.ones(3))
    numbers = list(range(torch_backward.ROOT_CUTS + 2))
    with attached(Timeline(automatic=True)):
        for number in numbers:
            torch.autograd.backward(weight.sum(), new=number)  # type: ignore[call-arg]

    assert seen == numbers


def test_first_thread_that_trains_is_timed(timeline: Timeline) -> None:
    """Once a step was seen, its thread stays the one."""
    elsewhere(lambda: train(timeline))
    timeline.tape.append(events.FINISH)
    steps = timeline.steps.totals().steps
    assert steps >= 2
    train(timeline)

    assert timeline.steps.totals().steps <= steps + 1


def test_backward_of_a_second_thread_is_its_own_affair(timeline: Timeline) -> None:
    """It is run as ever, also while the training thread's are cut at their root."""
    weight, owner = nn.Parameter(torch.ones(3)), timeline.tape.owner
    weight.sum().backward()
    timeline.tape.note(events.STEP)
    elsewhere(lambda: weight.sum().backward())

    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]
    assert timeline.tape.owner == owner
