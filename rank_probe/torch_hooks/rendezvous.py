"""Times the creation of the process group, where a job's ranks wait for each other to start."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches


class RendezvousListener(Protocol):
    """Who is told."""

    def rendezvous_begins(self) -> None:
        """The process group is being created."""

    def rendezvous_ended(self) -> None:
        """All ranks have met."""


def attach(lifecycle: RendezvousListener, meanwhile: Callable[[], object]) -> Patches:
    """Tell *lifecycle* of init_process_group, calling *meanwhile* first; `undo` to detach.

    Not seen: a script that imported the function by name earlier.
    """
    patches = Patches()
    if not torch.distributed.is_available():
        return patches
    from torch.distributed import device_mesh, distributed_c10d

    replacement = _timed(lifecycle, meanwhile, torch.distributed.init_process_group)
    # init_device_mesh creates the group too, by the name that its module imported.
    for module in (torch.distributed, distributed_c10d, device_mesh):
        if hasattr(module, "init_process_group"):
            patches.wrap(module, "init_process_group", lambda _: replacement)
    return patches


def _timed(
    lifecycle: RendezvousListener, meanwhile: Callable[[], object], original: Callable[..., Any]
) -> Any:
    begins, before, ended = (
        never_raise(lifecycle.rendezvous_begins),
        never_raise(meanwhile),
        never_raise(lifecycle.rendezvous_ended),
    )

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        begins()
        before()
        result = original(*args, **kwargs)
        ended()
        return result

    return init_process_group
