"""Times the creation of the process group, where a job's ranks wait for each other to start."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches, attaching
from rank_probe.process.lifecycle import Lifecycle
from rank_probe.torch_hooks.private import wrap
from rank_probe.torch_hooks.process_group import seeing_group


class GroupsListener(Protocol):
    """Callbacks for the life of every default process group."""

    def while_ranks_meet(self) -> object:
        """The process group is about to be created."""

    def formed(self) -> object:
        """A default process group was formed: the first, or after another one."""

    def gone(self) -> object:
        """It is gone."""


@attaching
def attach(patches: Patches, lifecycle: Lifecycle, groups: GroupsListener) -> None:
    """Report init_process_group to *lifecycle* and its result to *groups*; `undo` to detach.

    A script that imported the function by name earlier is not timed, but its groups are seen.
    """
    if not torch.distributed.is_available():
        return
    from torch.distributed import device_mesh, distributed_c10d

    without = "A default group that is formed anew is not joined."
    # All ways to form a group end there.
    formed, gone = never_raise(groups.formed), never_raise(groups.gone)
    telling = functools.partial(seeing_group, torch.distributed, formed, gone)
    wrap(patches, distributed_c10d, "_update_default_pg", telling, without)
    meanwhile = groups.while_ranks_meet
    replacement = _timed(lifecycle, meanwhile, torch.distributed.init_process_group)
    # init_device_mesh creates the group too, by the name that its module imported.
    for module in (torch.distributed, distributed_c10d, device_mesh):
        if hasattr(module, "init_process_group"):
            patches.wrap(module, "init_process_group", lambda _: replacement)


def _timed(
    lifecycle: Lifecycle, meanwhile: Callable[[], object], original: Callable[..., Any]
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
