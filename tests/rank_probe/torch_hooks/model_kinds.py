"""The kinds of collective that models call by themselves, for collectives_job.py."""

import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from tests.rank_probe.torch_hooks.collective_kind import Call, Kind, at, me, net, step_of


def ddp() -> dict[str, Kind]:
    """What DistributedDataParallel does in C++, with the kin of its contexts and hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def with_options(**options: Any) -> Callable[[], Call]:
        return lambda: step_of(DistributedDataParallel(net(), **options))

    def forward_only(normalize: bool) -> Callable[[], Call]:
        def make() -> Call:
            model = DistributedDataParallel(net(normalize))
            step_of(model)()
            return lambda: model(torch.ones(8, 4))

        return make

    def rebuilding() -> Call:
        model = DistributedDataParallel(net())
        calls = iter((step_of(model), lambda: model(torch.ones(8, 4))))
        return lambda: next(calls)()

    def hooked() -> Call:
        model = DistributedDataParallel(net())
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return step_of(model)

    def delayed() -> Call:
        model = net()
        names = list(model.named_parameters())
        return step_of(
            DistributedDataParallel(
                model,
                delay_all_reduce_named_params=names[1:],
                param_to_hook_all_reduce=names[0][1],
            )
        )

    def zero() -> Call:
        model = net()
        step_of(model)()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        return optimizer.step

    def join() -> Call:
        model = DistributedDataParallel(net())

        def call() -> None:
            with warnings.catch_warnings(), Join([model]):
                warnings.simplefilter("ignore")  # Join says that uneven inputs cost something.
                for _ in range(2 - me()):
                    step_of(model)()

        return call

    return {
        "DDP constructor": Kind(lambda: lambda: DistributedDataParallel(net())),
        "DDP": Kind(with_options()),
        "DDP find_unused_parameters": Kind(with_options(find_unused_parameters=True)),
        "DDP static_graph": Kind(with_options(static_graph=True)),
        "DDP bucket views": Kind(with_options(gradient_as_bucket_view=True)),
        "DDP buffers": Kind(forward_only(normalize=True), late=0),
        "DDP bucket rebuild": Kind(rebuilding, late=0),
        "DDP communication hook": Kind(hooked),
        "DDP delayed all-reduce": Kind(delayed),
        "Join": Kind(join),
        "ZeroRedundancyOptimizer": Kind(zero),
    }


class Synchronized(torch.autograd.Function):
    """Reduces over the ranks on both ways, as SyncBatchNorm does (which refuses the CPU)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, where: str) -> Tensor:
        ctx.where = where
        if where == "forward":
            dist.all_reduce(torch.ones(1))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        if ctx.where == "backward":
            dist.all_reduce(torch.ones(1))
        return gradients[0], None


def sharded() -> dict[str, Kind]:
    """FSDP, pipelines, checkpoints, and collectives within autograd."""
    from torch.distributed import pipelining
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    def fsdp1() -> Call:
        return step_of(FullyShardedDataParallel(net(), device_id=torch.device("cpu")))

    def fsdp2() -> Call:
        model = net()
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        return step_of(model)

    def pipeline() -> Call:
        stage = pipelining.PipelineStage(nn.Linear(4, 4), me(), 2, torch.device("cpu"))
        schedule: Any = pipelining.Schedule1F1B(stage, 2, loss_fn=nn.functional.mse_loss)
        x = torch.ones(4, 4)
        return lambda: at(0, lambda: schedule.step(x), lambda: schedule.step(target=x))

    def synchronized(where: str) -> Callable[[], Call]:
        x = torch.ones(2, requires_grad=True)
        apply: Any = Synchronized.apply
        return lambda: lambda: apply(x, where).sum().backward()

    def saving() -> Call:
        folder = [tempfile.mkdtemp() if me() == 0 else None]
        dist.broadcast_object_list(folder)
        return lambda: save({"x": torch.ones(2)}, checkpoint_id=folder[0])

    return {
        "FSDP1": Kind(fsdp1),
        "FSDP2": Kind(fsdp2),
        "pipeline": Kind(pipeline),
        "collective in forward": Kind(synchronized("forward")),
        "collective in backward": Kind(synchronized("backward")),
        "distributed.checkpoint": Kind(saving),
    }
