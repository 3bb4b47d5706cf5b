"""A training that is compiled without the probe, under it, or before it; see test_compile.py.

Prints what came of each as JSON.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from rank_probe.probe import Probe

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


if __name__ == "__main__":
    main(*sys.argv[1:])
