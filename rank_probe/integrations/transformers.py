"""Hugging Face Trainer: a callback that starts the probe and says what only the Trainer knows."""

from typing import Any

from transformers import TrainerCallback

from rank_probe import api
from rank_probe.guest.guard import never_raise
from rank_probe.measure import events


class RankskewCallback(TrainerCallback):  # type: ignore[misc]  # transformers' bases are untyped
    """Times `Trainer.train`: starts the probe, unless a launcher did, and detaches at the end.

    Stages are detected as in any script. The Trainer provides the end of the step (accumulated
    batches make one step), and forward where no loader shows it.
    """

    def __init__(self, *, job_id: str | None = None, peer_group: str | None = None) -> None:
        self._job_id, self._peer_group = job_id, peer_group
        self._started = False

    @never_raise
    def attach(self) -> None:
        """Start the probe if it is not running."""
        if api.timeline() is None:
            api.start(automatic=True, job_id=self._job_id, peer_group=self._peer_group)
            self._started = api.timeline() is not None  # Not if RANK_PROBE=0 turns all off.

    @never_raise
    def detach(self) -> None:
        """Finish the probe if it was started here."""
        if self._started:
            self._started = False
            api.finish()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Attach: the model is wrapped, and no batch has been read."""
        self.attach()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """All batches of the step are there: forward of the first one begins.

        The fetch does not show this: accelerate reads one batch ahead, so the last forward of an
        epoch follows a loader that has reached its end.
        """
        _begin_forward()

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """A batch was accumulated: forward of the next one, already read, begins."""
        _begin_forward()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The Trainer has counted a step."""
        api.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Detach; the last snapshot is pushed before this returns."""
        self.detach()


def _begin_forward() -> None:
    timeline = api.timeline()
    if timeline is not None:
        timeline.tape.note(events.FORWARD_BEGINS)
