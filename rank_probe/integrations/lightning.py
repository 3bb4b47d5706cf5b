"""Lightning: a callback that starts the probe and times what only the Trainer knows."""

import importlib
from collections.abc import Callable
from typing import Any

from rank_probe import api
from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches
from rank_probe.measure import events


def _callback_classes() -> tuple[type, ...]:
    """Return the Callback of each of Lightning's two packages that is installed."""
    found: list[type] = []
    missing: list[ImportError] = []
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            found.append(importlib.import_module(package).Callback)
        except ImportError as error:
            missing.append(error)
    if not found:
        raise ImportError("RankskewCallback needs lightning or pytorch_lightning") from missing[0]
    return tuple(found)


# A Trainer takes no callback of the other package; importing both costs 0.1 s more than one.
class RankskewCallback(*_callback_classes()):  # type: ignore[misc]  # known at run time only
    """Times `Trainer.fit`: starts the probe, unless a launcher did, and detaches at the end.

    Stages and work units are detected as in any torch loop. Lightning provides forward, evaluation,
    checkpoint and the end of the step: several optimizers and accumulated batches make one step.
    Outside `fit` it does nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches()
        self._started = False
        self._optimizer_steps = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start and attach before the first batch; the process group exists by now."""
        if stage == "fit":
            if not api.running():
                api.start(automatic=True)
                self._started = api.running()
            self._attach(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Complete the step, unless the batch was only accumulated."""
        if trainer.global_step != self._optimizer_steps:
            self._optimizer_steps = trainer.global_step
            api.step()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Detach without marking the rank finished."""
        self._detach(api.abandon)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Detach; the rank is finished if the callback started the probe."""
        if stage == "fit":
            self._detach(api.finish)

    @never_raise
    def _attach(self, trainer: Any) -> None:
        self._optimizer_steps = trainer.global_step
        _find_steps(False)
        wrap = self._patches.wrap
        # One wrapper instead of two hooks: an exception has to end the stage too.
        wrap(trainer.fit_loop.epoch_loop.val_loop, "run", lambda run: api.staged("eval", run))
        wrap(trainer, "save_checkpoint", lambda save: api.staged("checkpoint", save))
        # Lightning runs it within the optimizer's step, and all of a manual optimization within it.
        wrap(trainer.strategy, "training_step", lambda step: api.staged("forward", step))

    def _detach(self, end: Callable[[], None]) -> None:
        self._patches.undo()
        _find_steps(True)
        if self._started:
            self._started = False
            end()


def _find_steps(automatic: bool) -> None:
    """Let steps end automatically, as in the user's own loop, or where the Trainer says."""
    timeline = api.timeline()
    if timeline is not None:
        timeline.tape.note(events.STEPS_ARE_FOUND if automatic else events.STEPS_ARE_GIVEN)
