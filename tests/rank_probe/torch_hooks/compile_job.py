"""What torch.compile sees of the probe, in one process; run by test_compile.py, prints JSON.

With the name of a backend: a training that is compiled without the probe, under it, and before it.
Without one: the functions of the probe that run under torch.
"""

import io
import json
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from rank_probe import api
from rank_probe.probe import Probe
from rank_probe.torch_hooks import dynamo

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


hidden: set[CodeType] = set()
reached: set[CodeType] = set()


def follow(frame: FrameType, event: str, _: object) -> None:
    """Keep the probe's codes that are called."""
    if event == "call" and frame.f_code.co_filename.startswith(dynamo.DIRECTORY):
        reached.add(frame.f_code)


def pretend_a_gpu() -> None:
    """Answer as torch does with one GPU."""
    known = {"uuid": "0", "pci_domain_id": 0, "pci_bus_id": 0, "pci_device_id": 0, "name": "H100"}
    core: Any = torch._C
    over_at_once = {"record": bool, "query": lambda: True, "elapsed_time": lambda other: 1.0}
    core._CudaEventBase = lambda enable_timing: SimpleNamespace(**over_at_once)
    core._cuda_getCurrentRawStream = lambda device: 0
    core._cuda_isCurrentStreamCapturing = lambda: False
    cuda: Any = torch.cuda
    cuda.is_initialized = lambda: True
    cuda.current_device = lambda: 0
    cuda.current_stream = lambda device=None: 0
    cuda.get_device_properties = lambda device: SimpleNamespace(**known)
    cuda.get_device_name = lambda device: "H100"


def train_under_ddp() -> None:
    """Train, and save."""
    store: Any = dist
    dist.init_process_group("gloo", store=store.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows: Any = torch.ones(16, 2)
    for batch in DataLoader(rows, batch_size=2):
        model(batch).sum().backward()
        optimizer.step(closure=lambda: 0.0)
        with api.stage("eval"):
            pass
        api.step()
    torch.save(model.state_dict(), io.BytesIO())
    dist.destroy_process_group()


def print_reached() -> None:
    """Train on a GPU, as far as the probe can tell; print what of the probe ran unhidden."""
    dynamo._skip = lambda: hidden.add
    api.start(automatic=True)
    pretend_a_gpu()
    sys.setprofile(follow)
    for _ in range(2):
        train_under_ddp()
    sys.setprofile(None)
    api.finish()
    unhidden = {f"{code.co_filename}:{code.co_name}" for code in reached - hidden}
    print(json.dumps([len(reached), sorted(unhidden)]))


def print_outcomes(backend: str) -> None:
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
    if sys.argv[1:]:
        print_outcomes(*sys.argv[1:])
    else:
        print_reached()
