"""What torch waits for on behalf of the training thread, told from the stack it waits on.

From outside all of these look alike: a thread that waits for a lock, or one that runs.
"""

import os
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Final

from rank_probe.guest.yielding import give_way
from rank_probe.lines.loop_frames import LAYOUTS_KEPT, Spot, called_at
from rank_probe.lines.system_calls import BLOCKED, GPU, LOCK, PIPE, RUNNING, Wait

_LOADER: Final = os.path.join("torch", "utils", "data", "dataloader.py")
_ENGINE: Final = os.path.join("torch", "autograd", "graph.py")
# Calls that end when the GPU has done what was queued; torch spins meanwhile.
_OF_GPU: Final = frozenset(
    {"item", "tolist", "cpu", "numpy", "nonzero", "synchronize", "_cuda_synchronize"}
)
# The frames that look like a wait for a lock and are a wait for something else.
_FETCHES: Final = frozenset({"_get_data", "_try_get_data"})
MOST_INNER: Final = 8


class TorchCalls:
    """Corrects what a thread waits for, by its stack; for one thread."""

    def __init__(self) -> None:
        torch = sys.modules.get("torch")
        self.has_gpu = torch is not None and bool(torch.cuda.is_initialized())
        # By identity: the hash of a code reads all of it. The values keep the identities in use.
        self._called: dict[tuple[int, int], tuple[CodeType, str]] = {}

    def runs_elsewhere(self, code: CodeType | None) -> bool:
        """Whether a thread that runs *code* only waits for the engine's own thread.

        That one runs a backward on a GPU.
        """
        if not self.has_gpu or code is None:
            return False
        return code.co_name == "_engine_run_backward" and code.co_filename.endswith(_ENGINE)

    def what(self, wait: Wait, stack: Sequence[Spot]) -> Wait:
        """Return what *wait* is on this *stack*, innermost first."""
        if wait.state == LOCK and _fetches(stack):
            return Wait(PIPE)  # In between is torch's thread that pins memory.
        if self.has_gpu and wait.state in (RUNNING, LOCK, BLOCKED) and self._asks_gpu(stack):
            return Wait(GPU)
        return wait

    def _asks_gpu(self, stack: Sequence[Spot]) -> bool:
        return bool(stack) and self._name(stack[0]) in _OF_GPU

    def _name(self, spot: Spot) -> str:
        key = id(spot.code), spot.offset
        known = self._called.get(key)
        if known is None:
            if len(self._called) >= LAYOUTS_KEPT:
                self._called.clear()
            known = self._called[key] = spot.code, called_at(spot)
        return known[1]


def engine_thread(tasks: str = "/proc/self/task") -> int | None:
    """Return the number of the engine's thread that has worked most: that of this rank's GPU."""
    worked: dict[int, int] = {}
    for tid in os.listdir(tasks):
        try:
            with open(f"{tasks}/{tid}/comm") as comm, open(f"{tasks}/{tid}/schedstat") as schedstat:
                if comm.read().startswith("pt_autograd"):
                    worked[int(tid)] = int(schedstat.read().split()[0])
        except (OSError, ValueError, IndexError):
            continue  # It has ended, or this kernel counts nothing.
        give_way()
    return max(worked, key=lambda tid: worked[tid], default=None)


def _fetches(stack: Sequence[Spot]) -> bool:
    return any(
        code.co_name in _FETCHES and code.co_filename.endswith(_LOADER)
        for code, _ in stack[:MOST_INNER]
    )
