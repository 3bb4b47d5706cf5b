"""Tests of where a backward is cut into its own work and its wait, in one process."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward as torch_backward
from rank_probe.torch_hooks import process_group
from rank_probe.torch_hooks.private import find
from rank_probe.wire.stages import BACKWARD, OTHER, SYNC
from tests.rank_probe.fakes import elsewhere
from tests.rank_probe.torch_hooks.hooked import attached

pytestmark = pytest.mark.usefixtures("peers")


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    with attached(Timeline(automatic=True)) as timeline:
        yield timeline


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
    assert timeline.steps.totals().spent[BACKWARD] > 0


def test_kept_graph_collects_no_hooks(timeline: Timeline) -> None:
    """Each backward takes its hook off the graph again, also when it is run many times."""
    y, calls = (torch.ones(1, requires_grad=True) * 2).sum(), list[str]()
    y.register_hook(lambda _: calls.append("theirs"))
    for _ in range(2):
        y.backward(retain_graph=True)
    timeline.disable()
    seen = len(timeline.tape.take())
    y.backward()

    assert calls == ["theirs"] * 3
    assert len(y._backward_hooks or ()) == 1
    assert timeline.tape.take() == b""
    assert seen > 0


def test_callback_that_a_hook_of_the_loss_queues_is_sync(timeline: Timeline) -> None:
    """As FSDP's, which waits there, where the root module returns the loss itself."""
    stages: list[int] = []

    def wait() -> None:
        stages.append(timeline.state.stage)

    queue = torch.autograd.Variable._execution_engine.queue_callback
    for _ in range(2):
        loss = nn.Linear(2, 1)(torch.ones(4, 2)).sum()
        loss.register_hook(lambda _: queue(wait))
        loss.backward()

    assert stages == [SYNC, SYNC]


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

    def begin_again(self) -> None:
        """Forget the gradients of a backward that raised."""
        self._gradients = 0

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
    waited = timeline.steps.totals().spent[SYNC]
    job.step()

    assert max(job.hooks()) == 1
    assert timeline.steps.totals().spent[SYNC] > waited


def test_model_that_ddp_wraps_later_is_cut_from_its_first_backward_on(timeline: Timeline) -> None:
    """The old one's parameter takes no part, and lets go; one of the new model takes over."""
    old, new = Job(timeline), Job(timeline)
    old.step(torch_backward.ROOT_CUTS + 1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        DistributedDataParallel(new.model)
    finally:
        dist.destroy_process_group()
    new.step(torch_backward.ROOT_CUTS + 2)

    assert set(new.stages_of_wait) == {SYNC}
    assert (max(old.hooks()), max(new.hooks())) == (1, 2)


@pytest.mark.parametrize("always", [True, False])
def test_backward_within_a_backward_keeps_the_cut_at_the_root(
    timeline: Timeline, always: bool
) -> None:
    """Reentrant checkpointing ends inner backwards early; no parameter is left to tell the end.

    Also if only the second one holds another.
    """
    job, head = Job(timeline), nn.Linear(1, 1)
    rows = torch.ones(4, 2, requires_grad=True)
    job.step(1 - always)
    head(checkpoint(job.model, rows, use_reentrant=True)).sum().backward()
    for _ in range(torch_backward.ROOT_CUTS + 1):
        if always:
            head(checkpoint(job.model, rows, use_reentrant=True)).sum().backward()
        else:
            job.step()

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
    assert timeline.steps.totals().spent[SYNC] == 0


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


def test_losses_from_a_generator_have_their_gradients(timeline: Timeline) -> None:
    """torch takes any iterable of roots, and it can be read only once."""
    weight = nn.Parameter(torch.ones(3))
    for _ in range(torch_backward.ROOT_CUTS + 2):
        weight.grad = None
        torch.autograd.backward((weight * k).sum() for k in (1.0, 2.0))  # type: ignore[arg-type]

        assert weight.grad is not None
        assert weight.grad.tolist() == [3.0, 3.0, 3.0]


class Node:
    """A node of a graph, of which each has two ways to the next."""

    looks = 0

    def __init__(self, after: object) -> None:
        self._after = after

    @property
    def next_functions(self) -> list[tuple[object, int]]:
        Node.looks += 1
        return [(self._after, 0)] * 2


def test_graph_of_many_paths_is_walked_once() -> None:
    """A node is looked at once, however many lead to it: here 2 to the power of 60 paths do."""
    parameter = nn.Parameter(torch.ones(1))
    node: object = (parameter * 1).sum().grad_fn
    for _ in range(60):
        node = Node(node)

    assert torch_backward._a_parameter([node, node]) is parameter
    assert Node.looks <= 60


@pytest.mark.parametrize("within", [False, True])
def test_backward_that_raises_says_nothing_of_the_cut(timeline: Timeline, within: bool) -> None:
    """At its root, and where a parameter's hook cuts it: that takes over, or goes on."""
    job = Job(timeline)
    job.step(torch_backward.ROOT_CUTS + 1 if within else 0)
    handle = next(job.model.parameters()).register_hook(lambda _: theirs())
    with pytest.raises(ArithmeticError, match="theirs"):
        job.step()
    handle.remove()
    job.begin_again()
    timeline.steps.fold()
    job.step(torch_backward.ROOT_CUTS + 1)

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
        job.step(torch_backward.ROOT_CUTS + 2)

    assert set(job.stages_of_wait) == stages
    assert failures.count == failed


def test_backward_of_a_second_thread_is_its_own_affair(timeline: Timeline) -> None:
    """It is run as ever, also while the training thread's are cut at their root."""
    weight, owner = nn.Parameter(torch.ones(3)), timeline.tape.owner
    weight.sum().backward()
    timeline.tape.note(events.STEP)
    elsewhere(lambda: weight.sum().backward())

    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]
    assert timeline.tape.owner == owner
