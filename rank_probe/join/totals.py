"""The counters that rank 0 keeps for every rank and sends to it."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from rank_probe.guest.yielding import give_way
from rank_probe.join.align import Aligned
from rank_probe.join.charge import JoinCharges
from rank_probe.join.result import (
    CAUSED,
    COLUMNS,
    GROUP_WAIT,
    GROUPS,
    JOINED,
    LAST_STEP,
    RESULT_BYTES,
    STEPS,
    STRIDE,
)

_US: Final = 1e6


class JoinTotals:
    """Counters since the join began, for each rank of a world, and the steps that they include."""

    def __init__(self, world_size: int) -> None:
        self._totals = torch.zeros(world_size, COLUMNS, dtype=torch.float64, device="cpu")
        self._merged: set[int] = set()

    def unmerged(self, steps: Sequence[int]) -> list[int]:
        """Return those of *steps*, all on offer, that were not added yet; forget the others."""
        self._merged.intersection_update(steps)
        return [step for step in steps if step not in self._merged]

    def begin(self, aligned: Aligned, groups: int) -> None:
        """Count the steps of *aligned*, with ranks in so many *groups*; their charges follow."""
        self._merged.update(aligned.steps)
        self._totals[:, STEPS] += len(aligned.steps)
        self._totals[:, LAST_STEP].clamp_(min=max(aligned.steps))
        self._totals[:, GROUPS] = groups

    def add(self, ranks: Sequence[int], part: Tensor, charges: JoinCharges) -> None:
        """Add the *charges* of the steps in *part* [steps, ranks, stages], in microseconds."""
        gained = torch.zeros((len(ranks), COLUMNS), dtype=torch.float64, device="cpu")
        give_way()
        gained[:, JOINED] = part.sum(dim=(0, 2), dtype=torch.float64) / _US
        gained[:, GROUP_WAIT] = charges.unequal.sum(dim=0) / _US
        give_way()
        gained[:, CAUSED:] = charges.caused.sum(dim=0) / _US
        self._totals.index_add_(0, torch.tensor(ranks, dtype=torch.int64, device="cpu"), gained)

    def messages(self, stride: int) -> list[bytes]:
        """Return each rank's message, for `read_result`; *stride* is that of rank 0's ring."""
        self._totals[:, STRIDE] = stride
        whole = bytearray(RESULT_BYTES * len(self._totals))
        torch.frombuffer(whole, dtype=torch.float64).copy_(self._totals.view(-1))
        return [bytes(whole[at : at + RESULT_BYTES]) for at in range(0, len(whole), RESULT_BYTES)]
