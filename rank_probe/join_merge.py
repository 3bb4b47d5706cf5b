"""What rank 0 does with aligned steps: charge them, count, judge."""

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from rank_probe.join_align import Aligned
from rank_probe.join_charge import charge, members_by_size
from rank_probe.join_totals import Totals
from rank_probe.join_windows import TensorReduction
from rank_probe.judge import Judge
from rank_probe.verdict import Verdict
from rank_probe.windows import Leader

# Elements worked on at a time: small enough for one thread, and for few MiB.
CHUNK: Final = 32_768


class Merger:
    """Charges the merged steps and judges them; anew where other ranks or groups take part."""

    def __init__(self, world_size: int) -> None:
        self.totals = Totals(world_size)
        self._world_size = world_size
        self._parties: tuple[object, ...] = ()
        self._members: list[Tensor] = []

    def judge(self, aligned: Aligned, names: Mapping[int, str], now: float) -> Verdict:
        """Add the steps of *aligned*, at least one, and return the verdict after them.

        *names* [digest] are those of the peer groups; *now* is in seconds of one clock.
        """
        self._seat(aligned, names)
        self.totals.begin(aligned, sum(each.shape[0] for each in self._members))
        _, ranks, stages = aligned.microseconds.shape
        leaders: list[Leader] = []
        steps = iter(aligned.steps)
        for part in aligned.microseconds.split(max(1, CHUNK // (ranks * stages))):
            charges = charge(part, self._members)
            self.totals.add(aligned.ranks, part, charges)
            numbers = [next(steps) for _ in range(len(part))]
            leaders += self._reduction.add(numbers, part, charges, now)
        return self._judge.judge(
            self._reduction.mark(now),
            leaders,
            step=aligned.steps[-1],
            absent=self._world_size - ranks,
        )

    def _seat(self, aligned: Aligned, names: Mapping[int, str]) -> None:
        groups, nodes = aligned.groups.tolist(), aligned.nodes.tolist()
        parties = (tuple(aligned.ranks), tuple(groups), tuple(nodes))
        if parties != self._parties:
            self._parties = parties
            self._members = members_by_size(aligned.groups)
            self._reduction = TensorReduction(
                aligned.ranks, [names.get(each, str(each)) for each in groups], nodes
            )
            self._judge = Judge(self._reduction)
