"""Accelerate: starts the probe for an Accelerator and times what its own methods hide."""

from functools import partial
from types import TracebackType

from accelerate import Accelerator

from rank_probe import api
from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches


class Attachment:
    """The result of `attach`; `detach`, or the end of a `with` block, undoes it."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.started = False

    def detach(self, *, clean: bool = True) -> None:
        """Detach the probe; if `attach` started it, a *clean* end marks the rank finished."""
        self.patches.undo()
        if self.started:
            self.started = False
            api.stop(clean=clean)

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.detach(clean=kind is None)


def attach(accelerator: Accelerator) -> Attachment:
    """Time the training that *accelerator* prepares, from the thread that calls this.

    Starts the probe unless a launcher did. Loaders, `backward`, accumulation, the optimizer and
    every gather are detected as in any torch loop; `save_state` counts as `checkpoint`.
    """
    attachment = Attachment()
    if not api.running():
        api.start(automatic=True)
        attachment.started = api.running()
    _wrap(accelerator, attachment.patches)
    return attachment


@never_raise
def _wrap(accelerator: Accelerator, patches: Patches) -> None:
    patches.wrap(accelerator, "save_state", partial(api.staged, "checkpoint"))
