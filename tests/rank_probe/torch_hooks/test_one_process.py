"""Tests of the patches on torch in one process: what they time, and that they leave no trace."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from rank_probe.guest.patches import Patches
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward as torch_backward
from rank_probe.torch_hooks import collectives, process_group, training_loop
from rank_probe.wire.stages import BACKWARD, DATA, EVAL, FORWARD, OPTIMIZER, OTHER, STAGES, SYNC

pytestmark = pytest.mark.usefixtures("peers")


def attach_all(timeline: Timeline) -> list[Patches]:
    """Put every patch into torch."""
    modules = (torch_backward, collectives, training_loop)
    return [module.attach(timeline) for module in modules]


def undo_all(patches: list[Patches]) -> None:
    """Take them out again, last first."""
    while patches:
        patches.pop().undo()


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    """An automatic timeline with all patches in place, taken out again afterwards."""
    timeline = Timeline(automatic=True)
    patches = attach_all(timeline)
    yield timeline
    undo_all(patches)


class Spy(torch.autograd.Function):
    """Note which stage the clock is in while forward and backward run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, timeline: Timeline, seen: list[int]) -> Tensor:
        ctx.timeline, ctx.seen = timeline, seen
        seen.append(timeline.state.stage)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.seen.append(ctx.timeline.state.stage)
        return gradients[0], None, None


def loader(batches: int = 3, **options: Any) -> DataLoader[Any]:
    """Return a loader of *batches* batches of 4 rows."""
    return DataLoader(TensorDataset(torch.ones(4 * batches, 2)), batch_size=4, **options)


def train(timeline: Timeline, seen: list[int], **options: Any) -> None:
    """Run three steps of an ordinary loop, noting the stages on the way."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (rows,) in loader(**options):
        seen.append(timeline.state.stage)
        loss = Spy.apply(model(rows), timeline, seen).sum()  # type: ignore[no-untyped-call]
        loss.backward()
        seen.append(timeline.state.stage)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(timeline.state.stage)


@pytest.mark.parametrize("workers", [0, 2])
def test_ordinary_loop_passes_through_its_stages(timeline: Timeline, workers: int) -> None:
    """Each part of an unchanged loop runs in the stage named after it, with loader workers too."""
    seen: list[int] = []
    train(timeline, seen, num_workers=workers)

    assert seen == [FORWARD, FORWARD, BACKWARD, OTHER, OTHER] * 3
    totals = timeline.steps.totals()
    assert totals.steps == 3
    occurred = {STAGES[i] for i, ns in enumerate(totals.nanoseconds) if ns}
    assert occurred == {"data", "forward", "backward", "sync", "optimizer", "other"}


@pytest.mark.parametrize("gradients_off", [torch.no_grad, torch.inference_mode])
def test_loader_read_without_gradients_is_an_evaluation(
    timeline: Timeline, gradients_off: Any
) -> None:
    """Validation between two epochs is `eval`, fetches included, and training after it is not."""
    seen: list[int] = []
    train(timeline, seen)
    data = timeline.steps.spent()[DATA]
    with gradients_off():
        for _ in loader():
            assert timeline.state.stage == EVAL
    assert timeline.steps.spent()[DATA] == data
    train(timeline, seen)

    assert seen == [FORWARD, FORWARD, BACKWARD, OTHER, OTHER] * 6
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


def test_starting_a_loader_is_no_batch_yet(timeline: Timeline) -> None:
    """Between iter() and the first batch the loop does something else."""
    batches = iter(loader())
    assert timeline.state.stage == OTHER
    next(batches)

    assert timeline.state.stage == FORWARD


def test_after_the_last_batch_comes_other(timeline: Timeline) -> None:
    """An exhausted loader does not leave the clock in forward."""
    for _ in loader():
        assert timeline.state.stage == FORWARD

    assert timeline.state.stage == OTHER


def test_optimizer_runs_in_its_own_stage(timeline: Timeline) -> None:
    """The step of any optimizer is `optimizer`, whichever class it is of."""
    seen: list[int] = []

    class Noting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            seen.append(timeline.state.stage)
            return super().step(closure)

    Noting([torch.zeros(1, requires_grad=True)], lr=0.1).step()

    assert seen == [OPTIMIZER]
    assert timeline.state.stage == OTHER


def test_backward_that_raises_leaves_the_clock_right(timeline: Timeline) -> None:
    """The user's exception passes through backward, and what follows is not backward."""

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            raise ArithmeticError("theirs")

    x = torch.ones(1, requires_grad=True)
    with pytest.raises(ArithmeticError, match="theirs"):
        Broken.apply(x).backward()  # type: ignore[no-untyped-call]

    assert timeline.state.stage == OTHER
    assert len(timeline.state.frames) == 0


def test_gradients_are_what_they_were(timeline: Timeline) -> None:
    """Hooks on the graph change no value, for several roots and kept graphs too."""
    x = torch.tensor([2.0], requires_grad=True)
    y, z = x * 3, x * x
    torch.autograd.backward([y, z], retain_graph=True)
    torch.autograd.backward([y, z])

    assert x.grad is not None
    assert x.grad.item() == 2 * (3 + 4)


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

    if by_name:
        optimizer.step(closure=closure)
    else:
        optimizer.step(closure)

    assert len(seen) >= 4
    assert set(zip(seen[::2], seen[1::2], strict=True)) == {(FORWARD, OPTIMIZER)}
    assert timeline.state.stage == OTHER


def test_graph_without_a_plain_parameter_stays_at_the_root(timeline: Timeline) -> None:
    """A leaf made anew for each batch can hold no standing hook."""
    for _ in range(torch_backward.ROOT_CUTS + 2):
        leaf = torch.ones(2, requires_grad=True)
        (leaf * 2).sum().backward()
        assert not leaf._post_accumulate_grad_hooks


def test_user_hooks_still_run(timeline: Timeline) -> None:
    """A tensor hook of the user runs as ever."""
    x = torch.ones(1, requires_grad=True)
    seen: list[Tensor] = []
    x.register_hook(seen.append)
    (x * 2).sum().backward()

    assert [gradient.item() for gradient in seen] == [2.0]


def test_wait_after_the_last_gradient_is_sync(timeline: Timeline) -> None:
    """What the engine does after the last local gradient is waiting, not backward."""
    seen: list[int] = []

    def wait_for_others() -> None:
        seen.append(timeline.state.stage)

    x = torch.ones(1, requires_grad=True)
    # As DDP does: queue the wait from the hook of the last gradient.
    x.register_hook(
        lambda _: torch.autograd.Variable._execution_engine.queue_callback(wait_for_others)
    )
    (x * 2).sum().backward()

    assert seen == [SYNC]


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
    timeline = Timeline(automatic=True)
    patches = attach_all(timeline)
    during = [getattr(owner, name) for owner, name in places]
    undo_all(patches)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()

    assert all(a is not b for a, b in zip(before, during, strict=True))
    assert [getattr(owner, name) for owner, name in places] == before
    assert timeline.steps.spent()[OPTIMIZER] == 0


def test_a_probe_that_breaks_does_not_break_the_loop(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every boundary failing, training runs to its end and data is unchanged."""

    def broken(*_: object) -> None:
        raise RuntimeError("ours")

    timeline.tape.follower = broken
    monkeypatch.setattr(timeline.work, "_masks", None)
    train(timeline, [])

    assert timeline.state.stage == OTHER


def test_losses_from_a_generator_have_their_gradients(timeline: Timeline) -> None:
    """torch takes any iterable of roots, and it can be read only once."""
    weight = nn.Parameter(torch.ones(3))
    for _ in range(torch_backward.ROOT_CUTS + 2):
        weight.grad = None
        torch.autograd.backward((weight * k).sum() for k in (1.0, 2.0))  # type: ignore[arg-type]

        assert weight.grad is not None
        assert weight.grad.tolist() == [3.0, 3.0, 3.0]


def test_losses_may_be_passed_by_name(timeline: Timeline) -> None:
    """As the documentation of torch names them."""
    weight = nn.Parameter(torch.ones(3))
    torch.autograd.backward(tensors=iter([weight.sum()]))  # type: ignore[arg-type]

    assert weight.grad is not None
    assert timeline.steps.spent()[BACKWARD] > 0


def test_exception_of_the_generator_is_the_users(timeline: Timeline) -> None:
    """It passes as it would without the probe."""

    def losses() -> Iterator[Tensor]:
        raise ArithmeticError("theirs")
        yield

    with pytest.raises(ArithmeticError, match="theirs"):
        torch.autograd.backward(losses())  # type: ignore[arg-type]


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
    timeline = Timeline(automatic=True)
    patches = attach_all(timeline)
    weight: Any = nn.Parameter(torch.ones(3))
    for number in range(torch_backward.ROOT_CUTS + 2):
        torch.autograd.backward(weight.sum(), new=number)  # type: ignore[call-arg]
    undo_all(patches)

    assert seen == list(range(torch_backward.ROOT_CUTS + 2))


def test_training_on_another_thread_is_timed(timeline: Timeline) -> None:
    """The first thread that runs a backward is the training thread."""
    thread = threading.Thread(target=train, args=(timeline, []))
    thread.start()
    thread.join()
    timeline.tape.append(events.FINISH)

    assert timeline.steps.totals().steps >= 2


def test_second_thread_that_trains_is_not_timed(timeline: Timeline) -> None:
    """Once a step was seen, its thread stays the one."""
    train(timeline, [])
    before = timeline.steps.totals().steps
    thread = threading.Thread(target=train, args=(timeline, []))
    thread.start()
    thread.join()

    assert timeline.steps.totals().steps <= before + 1
