"""A timeline that torch tells its stages, in one process."""

from collections.abc import Iterator
from contextlib import contextmanager

from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward, collectives, training_loop


@contextmanager
def attached(automatic: Timeline) -> Iterator[Timeline]:
    """Have every patch in torch while the block runs."""
    modules = (backward, collectives, training_loop)
    patches = [module.attach(automatic) for module in modules]
    try:
        yield automatic
    finally:
        while patches:
            patches.pop().undo()
