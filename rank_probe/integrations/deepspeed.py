"""DeepSpeed: starts the probe and times what its engine does around torch's own calls."""

from collections.abc import Callable
from functools import partial
from typing import Any

from deepspeed.runtime.engine import DeepSpeedEngine

from rank_probe import api
from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches
from rank_probe.torch_hooks.parallel import forward_event

# Each with its stage; the collectives inside count as `sync`, as everywhere.
_STAGE_OF = {
    "_backward_epilogue": "backward",  # flattens and averages what it reduces
    "save_checkpoint": "checkpoint",
}

_patches = Patches()


@never_raise
def attach(*, job_id: str | None = None, peer_group: str | None = None) -> None:
    """Start the probe, unless a launcher did, and time the methods of DeepSpeed's engines.

    Call it on the training thread, after `deepspeed.initialize`.
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
    """Restore the engine's methods and finish the probe, with a last snapshot."""
    _patches.undo()
    api.finish()


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        timeline = api.timeline()
        if timeline is not None:
            timeline.tape.note(forward_event())
        return original(*args, **kwargs)

    return forward


def _step(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        with api.stage("optimizer"):
            result = original(engine, *args, **kwargs)
        # It is called for every batch. At the last batch of a step the engine increments its count,
        # even if an overflow made it skip the update.
        if engine.global_steps != before:
            api.step()
        return result

    return step
