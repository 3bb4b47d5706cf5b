"""One rank of loops_job.py with one more loop, `megatron`, on Megatron-core; see ways.py.

Megatron's schedule, DistributedDataParallel and optimizer are real. They run on a CPU because OnCpu
creates their "cuda" tensors there.
"""

from collections.abc import Callable, Iterator, Sequence
from time import sleep
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.optimizer import FP32Optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from demo.train import FEATURES, Batch
from tests.rank_probe.jobs.loops_job import LOOPS, Loop, loader, main, sgd
from tests.rank_probe.jobs.parallel_arms import MICRO_BATCHES, Seconds, network
from tests.rank_probe.launch import leave


class OnCpu(TorchFunctionMode):
    """Creates tensors on the CPU when a call asks for "cuda"."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call *function*."""
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Model(nn.Module):
    """A model as the schedule expects it."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, seconds: Seconds, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.network = network(seconds, 1 / MICRO_BATCHES)

    def set_input_tensor(self, _tensors: list[Tensor | None]) -> None:
        """Ignore the input from a previous pipeline stage: there is only one stage."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute."""
        outputs: Tensor = self.network(inputs)
        return outputs


def forward_step(batches: Iterator[Batch], model: nn.Module) -> tuple[Tensor, Any]:
    """Fetch a micro-batch and begin its forward, as Megatron-LM's scripts do."""
    inputs, targets = next(batches)

    def loss_of(outputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = nn.functional.mse_loss(outputs, targets)
        return loss, {"loss": loss.detach()}

    return model(inputs), loss_of


def megatron(seconds: Seconds, steps: int) -> Loop:
    """Megatron's schedule of micro-batches."""
    if not parallel_state.is_initialized():
        parallel_state.initialize_model_parallel()
    # As Megatron-LM sets it: its schedule then calls the autograd engine itself.
    config = TransformerConfig(
        num_layers=1,
        hidden_size=FEATURES,
        num_attention_heads=1,
        deallocate_pipeline_outputs=True,
        finalize_model_grads_func=finalize_model_grads,
    )
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), Model(seconds, config))
    config.no_sync_func = model.no_sync
    own = OptimizerConfig(optimizer="sgd", lr=0.01, clip_grad=0.0)
    optimizer = FP32Optimizer(sgd(model, seconds), own, lambda *_: None)
    batches = iter(loader(seconds, steps * MICRO_BATCHES, 1 / MICRO_BATCHES))
    forward_backward = get_forward_backward_func()

    yield
    for _ in range(steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        forward_backward(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=[model],
            num_microbatches=MICRO_BATCHES,
            seq_length=1,
            micro_batch_size=1,
        )
        optimizer.step()
        sleep(seconds["other"])


if __name__ == "__main__":
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]  # as above
    LOOPS["megatron"] = megatron
    with OnCpu():
        main()
    leave()
