"""Two ranks that wait once in each way that torch has, one of them late; see test_collectives.py.

There is one kind of call for each place in which the probe times waits; loops_job.py has those that
FSDP and pipelines make. Writes how long each call of the waiting rank took, and its stages
according to the timeline, to ANSWERS, as JSON.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.wire.stages import COMPUTE, STAGES, SYNC
from tests.rank_probe.launch import leave
from tests.rank_probe.torch_hooks.conftest import attached

Call = Callable[[], object]
# Returns the call that is made twice, the second time with a rank behind.
Make = Callable[[], Call]
DELAY = 0.1
# Here it is rank 0, for which the others wait; elsewhere rank 1.
WAITS_FOR_RANK_0 = ("DDP buffers", "DDP bucket rebuild")


def me() -> int:
    return dist.get_rank()


def at(rank: int, here: Call, elsewhere: Call) -> object:
    """Call *here* on *rank*, *elsewhere* on the other."""
    return here() if me() == rank else elsewhere()


def net(normalize: bool = False) -> nn.Module:
    """Return a small network, with buffers if it shall *normalize*."""
    middle = nn.BatchNorm1d(4) if normalize else nn.ReLU()
    return nn.Sequential(nn.Linear(4, 4), middle, nn.Linear(4, 1))


def step_of(model: nn.Module) -> Call:
    """Return a whole forward and backward of *model*."""
    return lambda: model(torch.ones(8, 4)).sum().backward()


def ddp() -> dict[str, Make]:
    """What DistributedDataParallel does in C++, with the kin of its contexts and hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def with_options(**options: Any) -> Make:
        return lambda: step_of(DistributedDataParallel(net(), **options))

    def forward_only() -> Call:
        model = DistributedDataParallel(net(normalize=True))
        step_of(model)()
        return lambda: model(torch.ones(8, 4))

    def rebuilding() -> Call:
        model = DistributedDataParallel(net())
        calls = iter((step_of(model), lambda: model(torch.ones(8, 4))))
        return lambda: next(calls)()

    def hooked() -> Call:
        model = DistributedDataParallel(net())
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return step_of(model)

    return {
        "DDP constructor": lambda: lambda: DistributedDataParallel(net()),
        "DDP": with_options(),
        "DDP find_unused_parameters": with_options(find_unused_parameters=True),
        "DDP static_graph": with_options(static_graph=True),
        "DDP buffers": forward_only,
        "DDP bucket rebuild": rebuilding,
        "DDP communication hook": hooked,
    }


class Synchronized(torch.autograd.Function):
    """Reduces over the ranks on the way back, as SyncBatchNorm does (which refuses the CPU)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        dist.all_reduce(torch.ones(1))
        return gradients[0]


def explicit() -> dict[str, Make]:
    """Waits as a training script calls them."""
    x = torch.ones(4)
    store: Any = dist.distributed_c10d._get_default_store()
    keys = map(str, itertools.count())

    def messages() -> None:
        peer = 1 - me()
        operations = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, x.clone(), peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    leaf, in_backward = torch.ones(2, requires_grad=True), cast(Any, Synchronized.apply)

    def waiting(wait: Callable[[str], object]) -> Call:
        return lambda: at(0, lambda: wait(next(keys)), lambda: store.set(next(keys), "set"))

    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(x),
        "future of all_reduce": lambda: dist.all_reduce(x, async_op=True).get_future().wait(),
        "monitored_barrier": dist.monitored_barrier,
        "batch_isend_irecv": messages,
        "new_group": dist.new_group,
        "collective in backward": lambda: in_backward(leaf).sum().backward(),
        "Store.get": waiting(store.get),
        "Store.wait": waiting(lambda key: store.wait([key])),
    }
    return {name: lambda call=call: call for name, call in calls.items()}  # type: ignore[misc]


def functional() -> dict[str, Make]:
    """Collectives that DTensor and compiled code are made of."""
    from torch.distributed import _functional_collectives as functional

    def reduced(tensor: Tensor) -> Tensor:
        group: Any = dist.group.WORLD
        result: Tensor = functional.all_reduce(tensor, "sum", group)
        return result + 1

    def compiled() -> Call:
        function = torch.compile(reduced, backend="aot_eager", fullgraph=True)
        return lambda: function(torch.ones(4))

    return {
        "functional all_reduce": lambda: lambda: reduced(torch.ones(4)),
        "compiled all_reduce": compiled,
    }


GROUPS = (explicit, functional, ddp)


def measured(timeline: Timeline, call: Call) -> dict[str, Any]:
    """Return the seconds of *call*, and those in each stage for *timeline*."""
    dist.barrier()
    before, began = timeline.steps.totals().spent, perf_counter()
    timeline.tape.note(events.ENTER | COMPUTE)
    call()
    timeline.tape.note(events.LEAVE)
    span, after = perf_counter() - began, timeline.steps.totals().spent
    stages = [(b - a) / 1e9 for a, b in zip(before, after, strict=True)]
    return {"span": span, "stages": dict(zip(STAGES, stages, strict=True))}


def late_call(timeline: Timeline, name: str, make: Make) -> dict[str, Any]:
    """Make the call once in step, then once with a rank late; return what the other one saw."""
    call = make()
    call()
    if me() != int(name not in WAITS_FOR_RANK_0):
        return measured(timeline, call)
    dist.barrier()
    sleep(DELAY)
    call()
    return {}


def main() -> None:
    """Measure all kinds, or those that the command line names."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with attached(Timeline(automatic=True)) as timeline:
        timeline.tape.note(events.ENTER | COMPUTE)  # Counting begins.
        timeline.tape.note(events.LEAVE)
        kinds = {name: make for group in GROUPS for name, make in group().items()}
        answers = {
            name: late_call(timeline, name, make)
            for name, make in kinds.items()
            if name in (sys.argv[1:] or kinds)
        }
    Path(os.environ["ANSWERS"], f"{me()}.json").write_text(
        json.dumps({name: answer for name, answer in answers.items() if answer})
    )
    if failures.count or len(timeline.state.frames) or timeline.state.stage == SYNC:
        raise SystemExit(f"{failures.count} failures, depth {len(timeline.state.frames)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave()
