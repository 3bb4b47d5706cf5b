"""What the probe replaces in torch, what it needs of it, and that torch.compile notices nothing.

As a program, this trains what a backend compiles: without the probe, under it, and before it. It
prints what came of each as JSON.
"""

import copy
import functools
import gc
import importlib
import inspect
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import trace_rules
from torch._dynamo.utils import counters
from torch._dynamo.variables import SkipFunctionVariable
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from rank_probe.guest.guard import failures
from rank_probe.guest.patches import Patches
from rank_probe.measure import timeline
from rank_probe.measure.tape import PythonTape, new_tape
from rank_probe.probe import Probe
from rank_probe.torch_hooks import checkpoints, copies, dynamo, private
from rank_probe.torch_hooks.private import find
from rank_probe.torch_hooks.store import obstacle
from tests.rank_probe.forks import Zygote


def test_everything_that_a_hook_may_call_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo would compile the rest between two graphs, which makes them three."""
    gc.unfreeze()  # What was imported, too.
    hidden: set[CodeType] = set()
    monkeypatch.setattr(dynamo, "_skip", lambda: hidden.add)
    probe = Probe(automatic=True, environment={})
    probe.attach()
    made = {each.__code__ for each in gc.get_objects() if type(each) is FunctionType}
    probe.detach()
    folders = tuple(f"{dynamo.DIRECTORY}{name}/" for name in ("guest", "measure", "torch_hooks"))
    ours = {code for code in made if code.co_filename.startswith(folders)}

    assert len(ours) > 200
    # What stands for torch where there is none, and what this test has replaced.
    assert {code.co_name for code in ours - hidden} == {"<lambda>", "_skip"}


STEPS = 3

Step = Callable[[Tensor], None]


class Net(nn.Module):
    """A network of one's own: torch.nn's containers alone are no frame that Dynamo compiles."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.layers(rows)
        return result


def step_of(model: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    """Return a step of the loop, as a script would write it."""

    def step(rows: Tensor) -> None:
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def with_collective(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a function with a collective in its graph."""

    def reduced(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows).sum()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return loss + 0 * total

    return reduced


DDP = DistributedDataParallel
# What is compiled, of a model and its optimizer; torch breaks a whole step at its backward.
ARMS: dict[str, Callable[..., Step]] = {
    "ddp": lambda model, optimizer, compile: step_of(compile(DDP(model)), optimizer),
    "ddp_around": lambda model, optimizer, compile: step_of(DDP(compile(model)), optimizer),
    "whole_step": lambda model, optimizer, compile: compile(step_of(model, optimizer)),
    # Here Dynamo compiles backward too, with the hooks in it.
    "compiled_autograd": lambda model, optimizer, compile: compile(step_of(model, optimizer)),
    "collective": lambda model, optimizer, compile: step_of(
        compile(with_collective(model)), optimizer
    ),
}


def outcome(arm: str, backend: str, attach_before_step: int | None) -> Mapping[str, Any]:
    """Train with the probe from that step on, or without one; return counts and parameters."""
    torch._dynamo.reset()
    counters.clear()
    torch._dynamo.config.compiled_autograd = arm == "compiled_autograd"
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = Probe(automatic=True, environment={})
    if attach_before_step == 0:
        probe.attach()
    step = ARMS[arm](model, optimizer, lambda what: torch.compile(what, backend=backend))
    compilations: list[Any] = []
    torch._dynamo.callback.callback_handler.register_start_callback(compilations.append)
    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(torch.randn(2 * STEPS * 4, 4)), batch_size=4)
    for index, (rows,) in enumerate(loader):
        if index == STEPS:
            compilations.clear()
        if index == attach_before_step:
            probe.attach()
        step(rows)
    late = len(compilations)
    torch._dynamo.callback.callback_handler.remove_start_callback(compilations.append)
    probe.detach()
    return {
        "graphs": dict(counters["stats"]),
        "breaks": sum(counters["graph_break"].values()),
        "late_compilations": late,
        "parameters": [parameter.detach().tolist() for parameter in model.parameters()],
    }


def main(backend: str) -> None:
    """Print the outcomes of every arm."""
    torch.set_num_threads(1)
    store: Any = dist
    dist.init_process_group("gloo", store=store.HashStore(), rank=0, world_size=1)
    answers = {
        arm: {
            when: outcome(arm, backend, step)
            for when, step in (("never", None), ("before", 0), ("after", STEPS))
        }
        for arm in ARMS
    }
    print(json.dumps(answers))
    dist.destroy_process_group()


# Code is generated for as long as a minute; what the probe could change comes before that.
GENERATES_CODE = pytest.param("inductor", marks=pytest.mark.nightly)


@pytest.fixture(scope="module", params=["aot_eager", GENERATES_CODE])
def outcomes(
    request: pytest.FixtureRequest, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What each arm counted without the probe, with it from the start, and from midway on."""
    folder = tmp_path_factory.mktemp("compile")
    fork = zygote.start(
        folder / "output",
        *("tests.rank_probe.torch_hooks.test_compile", request.param),
        TORCHINDUCTOR_CACHE_DIR=f"{folder}/cache",
    )
    status, said = fork.wait(280), fork.output.read_text()
    assert status == 0, said[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(said.splitlines()[-1])
    return found


@pytest.mark.jobs
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("arm", ARMS)
def test_probe_adds_no_graph_break_and_no_compilation(
    arm: str, when: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    """Attached before or after compilation, the probe changes neither graphs nor parameters."""
    never, with_probe = outcomes[arm]["never"], outcomes[arm][when]

    assert never["graphs"]["unique_graphs"] >= 1
    assert with_probe["graphs"] == never["graphs"]
    assert with_probe["breaks"] <= never["breaks"]
    assert never["late_compilations"] == 0
    # torch compiles an optimizer's step again when a hook is added to it; no other arm has one.
    assert with_probe["late_compilations"] == 0 or (arm, when) in (
        ("whole_step", "after"),
        ("compiled_autograd", "after"),
    )
    assert with_probe["parameters"] == never["parameters"]


def wraps(function: Any) -> list[object]:
    """Return what a decorator would take over."""

    def theirs() -> None:
        return None

    wrapper = functools.wraps(function)(theirs)
    return [wrapper.__name__, wrapper.__doc__, str(inspect.signature(wrapper))]


def is_left_by_dynamo(function: Any) -> bool:
    """Whether torch.compile calls it, and does not compile what it does."""
    if inspect.getattr_static(function, "_torchdynamo_disable", False):
        return True
    return trace_rules.lookup(function) is SkipFunctionVariable


def takes_any_arguments(function: Any) -> bool:
    """Whether a replacement takes what the function may take in another version, too."""
    code = getattr(function, "__code__", None)
    if code is None or not code.co_filename.startswith(dynamo.DIRECTORY):
        return True
    is_iterators = function.__name__ in ("__iter__", "__next__")  # Python calls them.
    any_arguments = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    return is_iterators or code.co_flags & any_arguments == any_arguments


BEHAVIOURS: Final[dict[str, Callable[[Any], object]]] = {
    "pickle": lambda function: pickle.loads(pickle.dumps(function)) is function,
    "deepcopy": lambda function: copy.deepcopy([function])[0] is function,
    "hash": lambda function: {function: 1}[function],
    "signature": lambda function: str(inspect.signature(function)),
    "source": inspect.getsource,
    "documentation": inspect.getdoc,
    "is a function": inspect.isfunction,
    "functools.wraps": wraps,
    "torch.compile leaves it": is_left_by_dynamo,
    "arguments": takes_any_arguments,
}


def behaviour(owner: Any, name: str) -> dict[str, object]:
    """Return what each of BEHAVIOURS gives for what is there; nothing where it raises."""
    found: dict[str, object] = {}
    for what, of in BEHAVIOURS.items():
        with suppress(Exception):  # The replacement may raise as well.
            found[what] = of(getattr(owner, name))
    return found


@pytest.mark.jobs  # It imports three frameworks.
@pytest.mark.filterwarnings("ignore")  # They warn of each other.
@pytest.mark.parametrize("tape", [new_tape, PythonTape])
def test_replacement_behaves_as_the_function_it_stands_for(
    monkeypatch: pytest.MonkeyPatch, tape: Any
) -> None:
    """Whatever works on the original works the same on its replacement; detach restores all.

    Functions that are replaced on import exist under the names that the probe knows.
    """
    late = [*checkpoints.PLACES, *checkpoints.EVALUATIONS]
    late += [(module, (path,)) for module, path in copies.MOVERS]
    for module, paths in late:
        owner = importlib.import_module(module)
        assert [path for path in paths if find(owner, path) is None] == []
    places: dict[tuple[int, str], tuple[Any, str]] = {}
    wrap = Patches.wrap

    def recorded(patches: Patches, owner: Any, name: str, make: Any) -> None:
        places[id(owner), name] = owner, name
        wrap(patches, owner, name, make)

    def replaced(look: Callable[[Any, str], Any]) -> list[Any]:
        """Return how everything looks while it is replaced."""
        probe = Probe(automatic=True, environment={})
        probe.attach()
        seen = [look(*place) for place in places.values()]
        probe.detach()
        return seen

    monkeypatch.setattr(timeline, "new_tape", tape)
    monkeypatch.setattr(Patches, "wrap", recorded)
    replaced(behaviour)
    stored = [vars(owner).get(name) for owner, name in places.values()]
    for (owner, name), ours in zip(places.values(), replaced(behaviour), strict=True):
        for what, was in behaviour(owner, name).items():
            assert was in (None, False, ours.get(what)), f"{what} of {owner!r}.{name}"

    assert len(places) > 60
    assert [vars(owner).get(name) for owner, name in places.values()] == stored
    assert failures.count == 0


# Py_TPFLAGS_HEAPTYPE
HEAP_TYPE: Final = 1 << 9


def is_immutable(owner: Any) -> bool:
    """Whether it is a type that is written in C."""
    return isinstance(owner, type) and not owner.__flags__ & HEAP_TYPE


def take_away(monkeypatch: pytest.MonkeyPatch, module: Any, path: str) -> None:
    """Delete what is at *path*; with what holds it, if that is an object in C."""
    parent, _, name = path.rpartition(".")
    owner = find(module, parent) if parent else module
    is_own = name in getattr(owner, "__dict__", ()) and not is_immutable(owner)
    if is_own and not name.startswith("__"):  # Each class has those.
        monkeypatch.delattr(owner, name)
    else:
        take_away(monkeypatch, module, parent)


def names_looked_for() -> list[tuple[Any, str, str]]:
    """Return what the hooks may do without: its owner, its path there, what is said then."""
    for late in ("checkpoint", "fsdp", "pipelining"):
        importlib.import_module(f"torch.distributed.{late}")
    known: dict[tuple[int, str], tuple[Any, str, str]] = {}

    def recording(owner: Any, path: str, without: str = "") -> Any:
        if without:
            known[id(owner), path] = owner, path, without
        return find(owner, path, without)

    with pytest.MonkeyPatch.context() as patch, suppress(ValueError):
        for name, module in list(sys.modules.items()):
            if name.startswith("rank_probe.") and vars(module).get("find") is find:
                patch.setattr(module, "find", recording)
        probe = Probe(automatic=True, environment={})
        probe.attach()
        probe.detach()
        obstacle()  # There is no group.
    return list(known.values())


def test_probe_attaches_without_each_name_of_torch() -> None:
    """A missing name is reported in a sentence; all other hooks still attach and detach."""
    wait = torch.distributed.Work.wait
    names = names_looked_for()
    hidden = "torch.compile also compiles the probe, with graph breaks around it."
    assert len(names) >= 30
    for owner, path, said in (*names, (torch._C, "_dynamo.eval_frame", hidden)):
        with pytest.MonkeyPatch.context() as patch:
            take_away(patch, owner, path)
            patch.setattr(private, "limitations", {})
            probe = Probe(automatic=True, environment={})
            probe.attach()
            with suppress(ValueError):
                obstacle()
            told = [*private.limitations]
            probe.detach()
        assert (path, said in told, failures.count) == (path, True, 0)
        assert torch.distributed.Work.wait == wait


def test_nothing_is_missed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed torch has every name that the probe looks for."""
    monkeypatch.setattr(private, "limitations", {})
    probe = Probe(automatic=True, environment={})
    probe.attach()
    probe.detach()

    assert private.limitations == {}


if __name__ == "__main__":
    main(*sys.argv[1:])
