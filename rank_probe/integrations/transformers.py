"""Hugging Face Trainer: a callback that starts the probe and names what only the Trainer knows."""

from functools import partial
from typing import Any

from transformers import Trainer, TrainerCallback

from rank_probe import api
from rank_probe.guard import never_raise
from rank_probe.patches import Patches

# The Trainer calls its callbacks when these end, not when they begin.
_STAGE_OF = {"_evaluate": "eval", "evaluate": "eval", "_save_checkpoint": "checkpoint"}


class RankskewCallback(TrainerCallback):  # type: ignore[misc]  # transformers' bases are untyped
    """Times `Trainer.train`: starts the probe, unless a launcher did, and detaches at the end.

    Stages are found as in any torch loop. From the Trainer come evaluation and checkpoints as
    stages, the step's end (accumulated batches make one step) and forward where no loader tells it.
    """

    def __init__(self, *, job_id: str | None = None, peer_group: str | None = None) -> None:
        self._job_id, self._peer_group = job_id, peer_group
        self._patches = Patches()
        self._started = False

    @never_raise
    def attach(self) -> None:
        """Start the probe if it is not running, and mark evaluations and checkpoints."""
        self._patches.undo()  # A training that raised never came to its end.
        if api.timeline() is None:
            api.start(automatic=True, job_id=self._job_id, peer_group=self._peer_group)
            self._started = api.timeline() is not None
        if api.timeline() is None:  # RANK_PROBE=0 turns everything off.
            return
        for name, stage in _STAGE_OF.items():
            self._patches.wrap(Trainer, name, partial(api.staged, stage))

    @never_raise
    def detach(self) -> None:
        """Put the Trainer's methods back, and finish the probe if it was started here."""
        self._patches.undo()
        if self._started:
            self._started = False
            api.finish()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Attach: the model is wrapped, no batch has been read."""
        self.attach()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """All batches of the step are there: forward of the first one.

        The fetch does not tell: accelerate reads a batch ahead, so that what precedes the last
        forward of an epoch is a loader at its end.
        """
        _begin_forward()

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """A batch is accumulated: forward of the next one, which was read before."""
        _begin_forward()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The Trainer counts a step."""
        api.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Detach; the last snapshot is pushed before this returns."""
        self.detach()


def _begin_forward() -> None:
    timeline = api.timeline()
    if timeline is not None:
        timeline.begin_forward()
