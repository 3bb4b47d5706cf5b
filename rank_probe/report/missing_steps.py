"""Says once why no step is seen: what a loop does that the probe cannot detect."""

import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from rank_probe.measure import events

log = logging.getLogger("rank_probe")

# From the first sign of training on.
PATIENCE_SECONDS: Final = 60.0
# The same after a fetch alone: the first step may compile a model.
COMPILING_SECONDS: Final = 120.0
SIGNS: Final = frozenset({events.FETCHED, events.BACKWARD_ENDED, events.OPTIMIZER_ENDED})

MEND: Final = """\
    import rank_probe as probe
    probe.start()  # on the thread that trains, before the loop
    probe.step()   # in the loop, after each step"""


class MissingSteps:
    """Warns once, if a loop shows signs of training but completes no step; for one thread.

    *automatic*: steps are found, not given.
    """

    def __init__(self, *, automatic: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._automatic = automatic
        self._now = now
        self._since: float | None = None
        self._is_done = False

    def look(self, steps: int, seen: Callable[[], Collection[int]]) -> None:
        """Look at what was *seen* so far; cheap once a step was."""
        if self._is_done or steps:
            self._is_done = True
            return
        signs = SIGNS.intersection(seen())
        if signs and self._since is None:
            self._since = self._now()
        patience = COMPILING_SECONDS if signs == {events.FETCHED} else PATIENCE_SECONDS
        if self._since is not None and self._now() - self._since > patience:
            self._is_done = True
            log.warning(
                "rank_probe has seen no whole step in %.0f s of training, so this rank reports "
                "none: %s. These three lines in the script mend it:\n%s",
                patience,
                why(signs) if self._automatic else "probe.step() was not called",
                MEND,
            )


def why(signs: Collection[int]) -> str:
    """Return what is missing in a loop that shows *signs*."""
    if events.OPTIMIZER_ENDED in signs:
        return "an optimizer ran, but no batch of a DataLoader, DDP forward or backward followed"
    if events.BACKWARD_ENDED in signs:
        return "backward runs, but no optimizer of torch.optim does"
    return "a DataLoader is read, but torch.autograd.backward does not run"
