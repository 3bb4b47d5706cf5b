"""Models that are replicated, sharded, pipelined or compiled, with the step of one batch."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from demo.train import BATCH, FEATURES, Block

PLACES = ("data", "forward", "backward", "optimizer", "other")
# Few loops have these, and not in each step. The delay is doubled there, as rank 0 saves more.
SELDOM = ("checkpoint", "eval")
EVERYWHERE = "everywhere"
HEALTHY, DELAY = 0.008, 0.08
MICRO_BATCHES = 4

Seconds = dict[str, float]
Step = Callable[[Any], None]  # forward and backward of one batch


def planted(place: str) -> Seconds:
    """Return the seconds that each stage takes: more in *place*, or in all of them."""
    seconds = dict.fromkeys(PLACES, HEALTHY) | dict.fromkeys(("other", *SELDOM), 0.0)
    for stage in seconds:
        if place in (stage, EVERYWHERE):
            seconds[stage] += delay_in(stage)
    return seconds


def delay_in(stage: str) -> float:
    """Return the seconds that are planted there."""
    return DELAY * (2 if stage in SELDOM else 1)


def asked_for(times: Mapping[str, int]) -> Seconds:
    """Return each stage's total delay in seconds if it comes so many *times*."""
    return {stage: number * delay_in(stage) for stage, number in times.items() if number}


def layers(seconds: Seconds, share: float = 1.0, normalize: bool = False) -> list[nn.Module]:
    """Return two blocks that take the stages' *seconds* times *share*."""
    forward, backward = seconds["forward"] * share / 2, seconds["backward"] * share / 2
    return [Block(sleep, forward, backward, normalize) for _ in range(2)]


def network(seconds: Seconds, share: float = 1.0, normalize: bool = False) -> nn.Sequential:
    """Return the two blocks of layers() with a head."""
    return nn.Sequential(*layers(seconds, share, normalize), nn.Linear(FEATURES, 1))


class SlowState:
    """A part of the training's state that takes *seconds* to copy."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def state_dict(self) -> dict[str, float]:
        """Return the state."""
        sleep(self._seconds)
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take it back: there is none."""


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def one_batch(model: nn.Module) -> Step:
    """Return the ordinary step."""
    return lambda batch: loss_of(model, batch).backward()


def accumulated(model: nn.Module, exchange: Callable[[bool], object]) -> Step:
    """Return a step of several micro-batches; *exchange* gets whether to exchange gradients."""

    def step(batch: Any) -> None:
        for micro_batch in range(1, MICRO_BATCHES + 1):
            exchange(micro_batch == MICRO_BATCHES)
            (loss_of(model, batch) / MICRO_BATCHES).backward()

    return step


def ddp(seconds: Seconds) -> tuple[nn.Module, Step]:
    """DistributedDataParallel, with BatchNorm's buffers to broadcast."""
    model = DistributedDataParallel(network(seconds, normalize=True))
    return model, one_batch(model)


def ddp_accumulation(seconds: Seconds) -> tuple[nn.Module, Step]:
    """DistributedDataParallel that exchanges gradients with every fourth micro-batch."""
    model = DistributedDataParallel(network(seconds, 1 / MICRO_BATCHES))

    def exchange(wanted: bool) -> None:
        model.require_backward_grad_sync = wanted  # As in `no_sync`.

    return model, accumulated(model, exchange)


def fsdp1(seconds: Seconds) -> tuple[nn.Module, Step]:
    """FullyShardedDataParallel, a unit for each block."""
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp

    cpu = torch.device("cpu")
    blocks = [Fsdp(block, device_id=cpu) for block in layers(seconds)]
    model = Fsdp(nn.Sequential(*blocks, nn.Linear(FEATURES, 1)), device_id=cpu)
    return model, one_batch(model)


def fully_sharded(seconds: Seconds, share: float = 1.0) -> Any:
    """Return a model under FSDP2, whose compute takes the *share* of a step's seconds."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # torch before 2.6
        from torch.distributed._composable import fsdp as before

        fully_shard = before.fully_shard  # type: ignore[attr-defined]  # not told to type checkers

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = network(seconds, share)
    for module in (model[0], model[1], model):
        fully_shard(module, mesh=mesh)
    return model


def fsdp2(seconds: Seconds) -> tuple[nn.Module, Step]:
    """fully_shard on each block and on the whole."""
    model = fully_sharded(seconds)
    return model, one_batch(model)


def fsdp2_accumulation(seconds: Seconds) -> tuple[nn.Module, Step]:
    """fully_shard that reduces gradients with every fourth micro-batch."""
    model = fully_sharded(seconds, 1 / MICRO_BATCHES)
    return model, accumulated(model, model.set_requires_gradient_sync)


def tensor_parallel(seconds: Seconds) -> tuple[nn.Module, Step]:
    """parallelize_module: pairs of a column-wise and a row-wise linear layer."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)  # Every rank of the group reads the same batch.
    parts: list[nn.Module] = []
    for block in layers(seconds):
        pair = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES))
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        parts += [parallelize_module(pair, mesh, plan), block]
    model = nn.Sequential(*parts, nn.Linear(FEATURES, 1))
    return model, one_batch(model)


def _pipeline(seconds: Seconds, schedule_class: str) -> tuple[nn.Module, Step]:
    """Return one of two pipeline stages, of which there are as many replicas as ranks allow."""
    from torch.distributed import pipelining

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "dp"))
    index = mesh["pp"].get_local_rank()
    head = [nn.Linear(FEATURES, 1)] if index == 1 else []
    module: nn.Module = nn.Sequential(*layers(seconds, 1 / MICRO_BATCHES), *head)
    if mesh["dp"].size() > 1:
        module = DistributedDataParallel(module, process_group=mesh["dp"].get_group())
    group = mesh["pp"].get_group()
    shape: dict[str, Any] = {}
    if torch.__version__ < "2.5":  # It does not infer the shape.
        shape["input_args"] = torch.ones(BATCH // MICRO_BATCHES, FEATURES)
    stage = pipelining.PipelineStage(module, index, 2, torch.device("cpu"), group=group, **shape)
    schedule: Any = getattr(pipelining, schedule_class)(
        stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss
    )

    def step(batch: Any) -> None:
        if index == 0:
            schedule.step(batch[0])
        else:
            schedule.step(target=batch[1])

    return module, step


def _interleaved(seconds: Seconds, schedule_class: str) -> tuple[nn.Module, Step]:
    """Return two stages a rank, whose chunks alternate."""
    from torch.distributed import pipelining

    cpu, size = torch.device("cpu"), dist.get_world_size()
    modules: list[nn.Module] = layers(seconds, 1 / MICRO_BATCHES)
    indices = [dist.get_rank(), dist.get_rank() + size]
    stages: list[Any] = [
        pipelining.PipelineStage(module, index, 2 * size, cpu)
        for module, index in zip(modules, indices, strict=True)
    ]
    schedule: Any = getattr(pipelining, schedule_class)(
        stages, MICRO_BATCHES, loss_fn=lambda output, target: (output - target).square().mean()
    )

    def step(batch: Any) -> None:
        inputs = [batch[0]] if indices[0] == 0 else []
        targets = batch[0] if indices[1] == 2 * size - 1 else None
        schedule.step(*inputs, target=targets)

    return nn.ModuleList(modules), step


_now: Seconds = {}  # What the compiled model's naps read: it is compiled once for all places.


@torch.library.custom_op("rank_probe_tests::nap", mutates_args=())
def nap(x: Tensor, stage: str) -> Tensor:
    """Take a stage's time; an operator, so that it is inside the compiled graph."""
    sleep(_now[stage])
    return x.clone()


@nap.register_fake
def _(x: Tensor, stage: str) -> Tensor:
    return torch.empty_like(x)


def _nap_backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return nap(gradient, "backward"), None


nap.register_autograd(_nap_backward)


class Napping(nn.Linear):
    """A linear layer whose compute takes the seconds that `_now` has."""

    def forward(self, x: Tensor) -> Tensor:
        napped: Tensor = nap(super().forward(x), "forward")
        return napped


_compiled: list[Any] = []


def compiled(seconds: Seconds) -> tuple[nn.Module, Step]:
    """DistributedDataParallel compiled by COMPILER; compilation itself is not in the numbers."""
    _now.update(seconds)
    if not _compiled:
        model = DistributedDataParallel(nn.Sequential(Napping(FEATURES, 1)))
        _compiled.append(torch.compile(model, backend=os.environ.get("COMPILER", "inductor")))
        for _ in range(3):
            one_batch(_compiled[0])((torch.randn(32, FEATURES), torch.randn(32, 1)))
    return _compiled[0], one_batch(_compiled[0])


ARMS: dict[str, Callable[[Seconds], tuple[nn.Module, Step]]] = {
    "ddp": ddp,
    "ddp_accumulation": ddp_accumulation,
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "fsdp2_accumulation": fsdp2_accumulation,
    "tensor_parallel": tensor_parallel,
    "pipeline_gpipe": partial(_pipeline, schedule_class="ScheduleGPipe"),
    "pipeline_1f1b": partial(_pipeline, schedule_class="Schedule1F1B"),
    "pipeline_interleaved": partial(_interleaved, schedule_class="ScheduleInterleaved1F1B"),
    "pipeline_zero_bubble": partial(_interleaved, schedule_class="ScheduleInterleavedZeroBubble"),
    "compiled": compiled,
}
