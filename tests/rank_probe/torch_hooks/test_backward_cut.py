"""Tests of where a backward is cut into its own work and its wait, in one process."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

from rank_probe.guest.guard import failures
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward as torch_backward
from rank_probe.torch_hooks import process_group
from rank_probe.torch_hooks.private import find
from rank_probe.wire.stages import BACKWARD, OTHER, SYNC
from tests.rank_probe.torch_hooks.conftest import attached

pytestmark = pytest.mark.usefixtures("peers")


CUTS = torch_backward.ROOT_CUTS


def theirs(*_: object) -> None:
    raise ArithmeticError("theirs")


def test_gradients_are_what_they_were(timeline: Timeline) -> None:
    """For several roots, kept graphs, the user's hooks, and roots that can be read only once."""
    x: Any = torch.tensor([2.0], requires_grad=True)
    seen: list[Tensor] = []
    x.register_hook(seen.append)
    y, z = x * 3, x * x
    torch.autograd.backward([y, z], retain_graph=True)
    torch.autograd.backward(tensors=[y, z])

    assert x.grad.item() == 2 * (3 + 4)
    assert sum(gradient.item() for gradient in seen) == x.grad.item()
    assert timeline.steps.totals().spent[BACKWARD] > 0
    for _ in range(CUTS + 2):
        x.grad = None
        torch.autograd.backward((x * k).sum() for k in (1.0, 2.0))  # type: ignore[arg-type]
        assert x.grad.tolist() == [3.0]


def test_kept_graph_collects_no_hooks(timeline: Timeline) -> None:
    """Each backward takes its hook off the graph again, and one with the probe off sets none."""
    y, calls = (torch.ones(1, requires_grad=True) * 2).sum(), list[Tensor]()
    y.register_hook(calls.append)
    for _ in range(2):
        y.backward(retain_graph=True)
    timeline.disable()
    seen = len(timeline.tape.take())
    y.backward()

    assert len(calls) == 3
    assert len(y._backward_hooks or ()) == 1
    assert timeline.tape.take() == b""
    assert seen > 0


class Job:
    """A model whose backward is seen to be cut, as DDP's would be: with the last gradient."""

    def __init__(self, timeline: Timeline) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        self.stages_of_wait: list[int] = []
        self.gradients = 0
        self._timeline = timeline
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self._gradient)

    def _gradient(self, _: Tensor) -> None:
        self.gradients += 1
        if self.gradients % len(list(self.model.parameters())) == 0:
            self.queue_wait()

    def queue_wait(self, _: object = None) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._wait)

    def _wait(self) -> None:
        self.stages_of_wait.append(self._timeline.state.stage)

    def hooks(self) -> list[int]:
        """Return how many hooks each parameter has."""
        return [len(p._post_accumulate_grad_hooks or ()) for p in self.model.parameters()]

    def loss(self) -> Tensor:
        result: Tensor = self.model(torch.ones(4, 2)).sum()
        return result

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.loss().backward()


@pytest.fixture
def job(timeline: Timeline) -> Job:
    return Job(timeline)


def test_callback_that_a_hook_of_the_loss_queues_is_sync(job: Job) -> None:
    """FSDP waits in such a callback when the root module returns the loss itself.

    A gradient edge counts as one root, although it is a tuple.
    """
    loss = nn.Linear(2, 1)(torch.ones(4, 2)).sum()
    loss.register_hook(job.queue_wait)
    loss.backward()
    if TorchVersion(torch.__version__) >= "2.8":
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(job.loss()))

    assert set(job.stages_of_wait) == {SYNC}


def test_one_parameter_takes_the_cut_until_it_takes_no_part(timeline: Timeline, job: Job) -> None:
    """After a few backwards one parameter's permanent hook cuts backward from the wait, `sync`.

    Freezing that parameter costs one backward its cut. The root then makes the cut, for good.
    """
    job.step(CUTS + 3)
    assert sorted(job.hooks()) == [1, 1, 1, 2]
    assert set(job.stages_of_wait) == {SYNC}

    list(job.model.parameters())[job.hooks().index(2)].requires_grad_(False)
    job.step()
    timeline.steps.fold()
    waited = timeline.steps.totals().spent[SYNC]
    job.step()
    assert max(job.hooks()) == 1
    assert timeline.steps.totals().spent[SYNC] > waited


@pytest.mark.usefixtures("alone")
def test_model_wrapped_later_is_cut_from_its_first_backward(timeline: Timeline, job: Job) -> None:
    """The old model's parameter gives up the cut; one of the new model's takes it over."""
    new = Job(timeline)
    job.step(CUTS + 1)
    DistributedDataParallel(new.model)
    new.step(CUTS + 2)

    assert set(new.stages_of_wait) == {SYNC}
    assert (max(job.hooks()), max(new.hooks())) == (1, 2)


@pytest.mark.parametrize("always", [True, False])
def test_backward_within_a_backward_keeps_the_cut_at_the_root(
    timeline: Timeline, job: Job, always: bool
) -> None:
    """With reentrant checkpointing no parameter marks the end of backward: the root keeps the cut.

    This holds too if only the second backward contains another one.
    """
    head, rows = nn.Linear(1, 1), torch.ones(4, 2, requires_grad=True)
    job.step(1 - always)
    for step in range(CUTS + 2):
        if always or step == 0:
            head(checkpoint(job.model, rows, use_reentrant=True)).sum().backward()
        else:
            job.step()

    assert max(job.hooks()) == 1
    assert not any(parameter._post_accumulate_grad_hooks for parameter in head.parameters())
    assert timeline.state.stage == OTHER


def test_backward_is_cut_as_soon_as_there_are_peers(
    timeline: Timeline, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank without any waits for nobody; its group may be created after its first backward."""
    monkeypatch.setattr(process_group, "has_peers", lambda: False)
    before = job.hooks()
    job.step(CUTS + 1)
    assert job.hooks() == before
    assert timeline.steps.totals().spent[SYNC] == 0

    monkeypatch.setattr(process_group, "has_peers", lambda: True)
    timeline.wait_for_peers()
    job.step()
    timeline.steps.fold()
    job.step(CUTS + 1)
    assert job.stages_of_wait == [BACKWARD] * (CUTS + 2) + [SYNC] * (CUTS + 1)
    assert max(job.hooks()) == 2


def test_graph_without_a_plain_parameter_stays_at_the_root(timeline: Timeline) -> None:
    """A leaf that is created for each batch gets no permanent hook.

    The search visits a node once, although here 2 to the power of 60 paths lead to it.
    """
    for _ in range(CUTS + 2):
        leaf = torch.ones(2, requires_grad=True)
        loss = (leaf * 2).sum()
        for _ in range(60):
            loss = loss + loss
        loss.backward()
        assert not leaf._post_accumulate_grad_hooks


@pytest.mark.parametrize("steps", [0, CUTS + 1])
def test_backward_that_raises_leaves_the_clock_and_the_cut_right(
    timeline: Timeline, job: Job, steps: int
) -> None:
    """The user's exception, of a node or a generator, passes: at the root, and at a parameter."""
    job.step(steps)
    handle = next(job.model.parameters()).register_hook(theirs)
    for roots in (job.loss(), map(theirs, "1")):
        with pytest.raises(ArithmeticError, match="theirs"):
            torch.autograd.backward(roots)  # type: ignore[arg-type]  # any iterable is taken
        assert timeline.state.stage == OTHER
        assert len(timeline.state.frames) == 0
    handle.remove()
    job.gradients = 0
    timeline.steps.fold()
    job.step(CUTS + 1)

    assert max(job.hooks()) == 2
    assert set(job.stages_of_wait) == {SYNC}


@pytest.mark.parametrize(
    ("missing", "stages"),
    [
        ("Tensor._backward_hooks", {SYNC}),
        ("_FunctionBase._register_hook_dict", {SYNC}),
        ("Variable._execution_engine.queue_callback", {BACKWARD}),
    ],
)
def test_name_that_torch_lacks_costs_at_most_the_cut(
    missing: str, stages: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public way is used where there is one; without any, nothing is cut, and nothing fails."""

    def known(owner: Any, name: str, without: str = "") -> Any:
        return None if name == missing else find(owner, name, without)

    monkeypatch.setattr(torch_backward, "find", known)
    failed = failures.count
    with attached(Timeline(automatic=True)) as timeline:
        job = Job(timeline)
        job.step(CUTS + 2)

    assert set(job.stages_of_wait) == stages
    assert failures.count == failed
