"""DeepSpeed: start the probe and name what its engine does around torch's own calls."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from deepspeed.runtime.engine import DeepSpeedEngine

from rank_probe import api
from rank_probe.guard import never_raise
from rank_probe.patches import Patches

# Each with its stage; the collectives inside go to `sync` as everywhere.
_STAGE_OF = {
    "_backward_epilogue": "backward",  # flattens and averages what it reduces
    "save_checkpoint": "checkpoint",
}

_patches = Patches()


@never_raise
def attach(*, job_id: str | None = None, peer_group: str | None = None) -> None:
    """Start the probe, unless a launcher did, and name what DeepSpeed's engines do.

    Call it on the thread that trains, after `deepspeed.initialize`.
    """
    api.start(automatic=True, job_id=job_id, peer_group=peer_group)
    _patches.undo()
    if not api.running():  # RANK_PROBE=0 turns everything off.
        return
    _patches.wrap(DeepSpeedEngine, "forward", _forward)
    _patches.wrap(DeepSpeedEngine, "step", _step)
    for name, stage in _STAGE_OF.items():
        _patches.wrap(DeepSpeedEngine, name, partial(api.staged, stage))


@never_raise
def detach() -> None:
    """Put the engine's methods back and finish the probe, with a last snapshot."""
    _patches.undo()
    api.finish()


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        timeline = api.timeline()
        if timeline is not None and torch.is_grad_enabled():
            timeline.begin_forward()
        return original(*args, **kwargs)

    return forward


def _step(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        with api.stage("optimizer"):
            result = original(engine, *args, **kwargs)
        # It is called for every batch; at the last one that a step accumulates the engine counts,
        # also where an overflow made it skip the update.
        if engine.global_steps != before:
            api.step()
        return result

    return step
