"""Time every wait for other ranks as `sync`, whichever stage it hides in.

Needed in the manual mode too: without it a slow stage is as long on every rank, since the others
spend the difference waiting inside theirs.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from rank_probe.patches import Patches
from rank_probe.timeline import Timeline


def attach(timeline: Timeline) -> Patches:
    """Time the waits of torch's collectives on *timeline*; `undo` the result to detach."""
    patches = Patches()
    if not torch.distributed.is_available():
        return patches
    from torch._C._distributed_c10d import Reducer
    from torch.nn.parallel import DistributedDataParallel

    # Every Python-visible collective ends in Work.wait: explicit ones, FSDP's, pipelines'.
    patches.wrap(torch.distributed.Work, "wait", lambda original: _wait(timeline, original))
    # DDP broadcasts from rank 0 in C++ inside forward: its buffers (BatchNorm's) every time, its
    # bucket order in the second one. Rank 0 does not wait for the others there: no release.
    for owner, name in (
        (DistributedDataParallel, "_sync_buffers"),
        (Reducer, "_rebuild_buckets"),
    ):
        patches.wrap(owner, name, lambda original: _wait(timeline, original, release=False))
    return patches


def _wait(timeline: Timeline, original: Callable[..., Any], *, release: bool = True) -> Any:
    def wait(*args: Any, **kwargs: Any) -> Any:
        entered = timeline.enter_wait()
        try:
            return original(*args, **kwargs)
        finally:
            if entered:
                timeline.leave_wait(release)

    return wait
