"""Ray Train: times every worker's training function, and the barrier in its reports."""

import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import ray.train
from ray.train.v2._internal.execution import collective_impl
from ray.train.v2._internal.execution.context import TrainContext

from rank_probe import api
from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches
from rank_probe.measure import events
from rank_probe.measure.tape import around

T = TypeVar("T")

_patches = Patches()


def with_probe(train_loop: Callable[..., T], *, job_id: str | None = None) -> Callable[..., T]:
    """Return *train_loop*, timed: `TorchTrainer(with_probe(train_loop_per_worker), ...)`.

    Its exceptions pass unchanged; a worker that raised is not marked finished. *job_id* defaults
    to RANKSKEW_JOB_ID, else to the run's name.
    """

    @wraps(train_loop)  # Ray inspects the signature.
    def timed(*config: Any) -> T:
        attach(job_id=job_id)
        try:
            result = train_loop(*config)
        except BaseException:
            _stop(clean=False)
            raise
        detach()
        return result

    return timed


@never_raise
def attach(*, job_id: str | None = None) -> None:
    """Start the probe in this worker; call it first in the training function, on its thread."""
    name = ray.train.get_context().get_experiment_name()
    job_id = job_id or os.environ.get("RANKSKEW_JOB_ID") or name
    api.start(automatic=True, job_id=job_id)
    timeline = api.timeline()
    _patches.undo()
    if timeline is None:  # RANK_PROBE=0 turns everything off.
        return
    _patches.wrap(TrainContext, "report", _checkpoint)
    timed_wait = partial(around, timeline.tape.note, begins=events.WAIT, ended=events.RELEASED)
    # Every report is a barrier, in an actor: torch.distributed does not see it.
    for owner, names in (
        (TrainContext, ("_sync_checkpoint_dir_name_across_ranks",)),
        (collective_impl, ("barrier", "broadcast_from_rank_zero")),
    ):
        for name in names:
            _patches.wrap(owner, name, timed_wait)


def detach() -> None:
    """Stop, with a last snapshot; call it at the end of the training function.

    Ray ends its workers without running exit handlers, so this must be called explicitly.
    """
    _stop(clean=True)


@never_raise
def _stop(*, clean: bool) -> None:
    _patches.undo()
    api.stop(clean=clean)


def _checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    def report(*args: Any, **kwargs: Any) -> Any:
        # Of the arguments self, metrics, checkpoint...
        if kwargs.get("checkpoint", args[2] if len(args) > 2 else None) is None:
            return original(*args, **kwargs)
        with api.stage("checkpoint"):
            return original(*args, **kwargs)

    return report
