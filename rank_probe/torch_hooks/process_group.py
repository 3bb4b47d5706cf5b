"""torch's process group: this process's place in it, and the moment that it is created.

Imports no torch: the script may not have done so yet.
"""

import functools
from collections.abc import Callable
from typing import Any

from rank_probe.guest.imports import imported
from rank_probe.guest.patches import Patches


def rank_and_world_size() -> tuple[int, int] | None:
    """Return torch.distributed's rank, for launchers without variables; None before its init."""
    torch = imported("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    group = torch.distributed.group.WORLD  # get_rank() takes more calls, in each push.
    return None if group is None else (group.rank(), group.size())


def has_peers() -> bool:
    """Whether torch.distributed knows other ranks."""
    known = rank_and_world_size()
    return known is not None and known[1] > 1


def before_created(torch: Any, patches: Patches, call: Callable[[], object]) -> None:
    """Call *call*, which must not raise, as soon as a process group is created.

    What is replaced is added to *patches*; *call* may undo them.
    """
    if not torch.distributed.is_available():
        return
    c10d = torch.distributed.distributed_c10d
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        call()
        # *call* may have patched the function; call the patched one to time the rendezvous.
        patched = c10d.init_process_group
        return (original if patched is init_process_group else patched)(*args, **kwargs)

    # init_device_mesh calls it too, by the name that its module imported.
    for module in (c10d, torch.distributed, torch.distributed.device_mesh):
        if getattr(module, "init_process_group", None) is original:
            patches.wrap(module, "init_process_group", lambda _: init_process_group)
    # A forked child may call the function by a name that its parent imported earlier. All of these
    # calls end here, but then the rendezvous is not timed.
    if hasattr(c10d, "_update_default_pg"):
        make = functools.partial(seeing_group, torch.distributed, call, lambda: None)
        patches.wrap(c10d, "_update_default_pg", make)


def seeing_group(
    distributed: Any,
    formed: Callable[[], object],
    gone: Callable[[], object],
    original: Callable[..., Any],
) -> Callable[..., Any]:
    """Return *original*, c10d's `_update_default_pg`, followed by a call of *formed* or *gone*."""

    def _update_default_pg(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        (formed if distributed.is_initialized() else gone)()
        return result

    return _update_default_pg
