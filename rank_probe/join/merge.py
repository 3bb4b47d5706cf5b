"""What rank 0 does with aligned steps: charge, count and judge them, and add up the counters."""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from rank_probe.guest.yielding import give_way
from rank_probe.join.align import Aligned
from rank_probe.join.charge import JoinCharges, charge, members_by_size
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
from rank_probe.join.windows import TensorReduction
from rank_probe.judge.common import Facts
from rank_probe.judge.judge import WARMUP_STEPS, Judge
from rank_probe.judge.verdict import Verdict
from rank_probe.judge.windows import Leader

_US: Final = 1e6
# Elements processed at a time: few enough for one thread and a few MiB.
CHUNK: Final = 32_768


class JoinTotals:
    """Counters since the join began, for each rank of a world, and the steps that they include."""

    def __init__(self, world_size: int) -> None:
        self._totals = torch.zeros(world_size, COLUMNS, dtype=torch.float64, device="cpu")
        self._merged: set[int] = set()

    def unmerged(self, steps: Sequence[int]) -> list[int]:
        """Return the offered *steps* not added yet; forget added steps no longer offered."""
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


class Merger:
    """Charges the merged steps and judges them; the judge starts over if ranks or groups change.

    It also starts over after a failure, with the next steps: failed steps are not merged again.

    *facts* are what is known of the ranks so far.
    """

    def __init__(self, world_size: int, facts: Facts | None = None) -> None:
        self.totals = JoinTotals(world_size)
        self._facts = facts
        self._world_size = world_size
        self._parties: tuple[object, ...] = ()
        self._members: list[Tensor] = []

    def judge(
        self, aligned: Aligned, names: Mapping[int, str], now: float, work: float = 0.0
    ) -> Verdict:
        """Add the steps of *aligned*, at least one, and return the verdict after them.

        *names* [digest] are the peer groups' names; *now* is in seconds of one clock; *work* counts
        what a rank was given so far.
        """
        parties = self._seat(aligned, names)
        give_way()
        self.totals.begin(aligned, sum(each.shape[0] for each in self._members))
        give_way()
        ends = step_ends(aligned.microseconds, now)
        give_way()
        # The judge's history begins at the end of the warm-up, not at the end of a round.
        warm = min(max(WARMUP_STEPS - self._steps, 0), len(ends))
        self._steps += len(ends)
        pieces = [range(warm), range(warm, len(ends))]
        verdicts = [self._judged(aligned, piece, ends, work) for piece in pieces if piece]
        self._parties = parties
        return verdicts[-1]

    def _judged(
        self, aligned: Aligned, piece: range, ends: Sequence[float], work: float
    ) -> Verdict:
        part = aligned.microseconds[piece.start : piece.stop]
        numbers = aligned.steps[piece.start : piece.stop]
        _, ranks, stages = part.shape
        at_once = max(1, CHUNK // (ranks * stages))
        leaders: list[Leader] = []
        for first in range(0, len(part), at_once):
            some = part[first : first + at_once]
            charges = charge(some, self._members)
            give_way()
            self.totals.add(aligned.ranks, some, charges)
            give_way()
            leaders += self._reduction.add(
                numbers[first : first + at_once],
                some,
                charges,
                ends[piece.start + first : piece.start + first + len(some)],
            )
            give_way()
        return self._judge.judge(
            self._reduction.mark(ends[piece.stop - 1]),
            leaders,
            step=numbers[-1],
            absent=self._world_size - ranks,
            work=work,
        )

    def _seat(self, aligned: Aligned, names: Mapping[int, str]) -> tuple[object, ...]:
        groups, nodes = aligned.groups.tolist(), aligned.nodes.tolist()
        parties = (tuple(aligned.ranks), tuple(groups), tuple(nodes))
        before, self._parties = self._parties, ()  # Until there is a verdict.
        if parties != before:
            self._members = members_by_size(aligned.groups)
            self._reduction = TensorReduction(
                aligned.ranks, [names.get(each, str(each)) for each in groups], nodes
            )
            self._judge = Judge(self._reduction, self._facts)
            self._steps = 0
        return parties


def step_ends(microseconds: Tensor, now: float) -> list[float]:
    """Return when each step ended, assuming that the last ended *now* and there are no gaps."""
    lengths = microseconds.sum(dim=(1, 2), dtype=torch.float64) / microseconds.shape[1] / 1e6
    after = lengths.flip(0).cumsum(0).flip(0) - lengths
    ends: list[float] = (now - after).tolist()
    return ends
