"""Statistics of windows of steps on torch's CPU tensors, for the join's thousands of ranks.

The formulas are those of rankskew/accounting/windows.py; a test checks that the two agree.
"""

import math
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from rank_probe.guest.yielding import give_way
from rank_probe.join.charge import JoinCharges, baseline, quantile
from rank_probe.judge.windows import (
    CAUSED,
    DISTANCE,
    DISTANCE_SQUARED,
    FIRST_STAGE,
    MOST_STANDING,
    STANDS_OUT_RATIO,
    WORK_STAGES,
    Leader,
    Mark,
    Standing,
    Window,
    WindowGroup,
    spread_of,
)
from rank_probe.wire.stages import SYNC

_SECONDS: Final = 1e-6


class JoinSums(NamedTuple):
    """Sums over steps in seconds, [ranks, ...], [groups]; columns as accounting.windows.Sums."""

    ranks: Tensor
    groups: Tensor
    job: Tensor

    def means(self, since: "JoinSums", steps: int) -> "JoinSums":
        """Return the means over the *steps* after *since*."""
        return JoinSums(*((a - b) / steps for a, b in zip(self, since, strict=True)))


class TensorReduction:
    """Sums steps up and derives statistics from the sums.

    *groups* and *nodes* are those of *ranks*, in order; group names are unique.
    """

    def __init__(self, ranks: Sequence[int], groups: Sequence[str], nodes: Sequence[int]) -> None:
        self.groups = dict(zip(ranks, groups, strict=True))
        self.nodes = dict(zip(ranks, nodes, strict=True))
        self._ranks = list(ranks)
        self._at = {rank: at for at, rank in enumerate(ranks)}
        self._names = sorted(set(groups))
        places = [self._names.index(each) for each in groups]
        self._of = torch.tensor(places, dtype=torch.int64, device="cpu")
        self._members = [(self._of == at).nonzero()[:, 0] for at in range(len(self._names))]
        self._first = torch.stack([members[0] for members in self._members])
        self._steps = 0
        self._sums = JoinSums(
            _zeros(len(ranks), FIRST_STAGE + len(WORK_STAGES)),
            _zeros(len(self._names)),
            _zeros(5 + len(WORK_STAGES)),
        )

    def add(
        self, numbers: Sequence[int], part: Tensor, charges: JoinCharges, ends: Sequence[float]
    ) -> list[Leader]:
        """Add the steps of *part* [steps, ranks, stages] in microseconds, with their *charges*.

        Returns the leader of each; *ends* are their ends by the clock.
        """
        busy, normal = charges.busy * _SECONDS, charges.normal * _SECONDS
        distance = busy - normal
        caused = charges.caused.sum(dim=2)
        usual = normal[:, self._first]
        ranks, groups, job = self._sums
        give_way()
        gained = torch.stack(
            [distance.sum(0), distance.square().sum(0), caused.sum(0) * _SECONDS], dim=1
        )
        give_way()
        stages = part[:, :, :SYNC].sum(dim=0, dtype=torch.float64) * _SECONDS
        slowest = busy.amax(dim=1)
        give_way()
        seconds = [
            part.sum(dtype=torch.float64) * _SECONDS / part.shape[1],
            part[:, :, SYNC].sum(dtype=torch.float64) * _SECONDS,
            (slowest[:, None] - busy).sum(),
        ]
        give_way()
        seconds += [
            charges.unequal.sum() * _SECONDS,
            quantile(0.5, distance).sum(),
            *charges.caused[:, :, :SYNC].sum(dim=(0, 1)) * _SECONDS,
        ]
        give_way()
        mine = torch.tensor(seconds, dtype=torch.float64, device="cpu")
        self._sums = JoinSums(
            ranks + torch.cat([gained, stages], dim=1),
            groups + usual.sum(0),
            job + mine,
        )
        self._steps += len(numbers)
        give_way()
        heaviest = usual.amax(dim=1)
        give_way()
        lead = (slowest - heaviest).tolist()
        cost = (caused.gather(1, charges.pacer[:, None])[:, 0] * _SECONDS).tolist()
        return [
            Leader(number, at, self._ranks[pacer], stage, ahead, waited, usually, longest)
            for number, at, pacer, stage, ahead, waited, usually, longest in zip(
                numbers,
                ends,
                charges.pacer.tolist(),
                charges.stage.tolist(),
                lead,
                cost,
                heaviest.tolist(),
                charges.longest.tolist(),
                strict=True,
            )
        ]

    def mark(self, at: float) -> Mark:
        """Return the current sums; adding steps replaces them and never changes them."""
        return Mark(self._steps, at, self._sums)

    def window(
        self,
        begin: Mark,
        end: Mark,
        watched: Collection[int] = (),
        before: tuple[Mark, Mark] | None = None,
    ) -> Window:
        """Return what stands out; see rank_probe.judge.windows.Reduction."""
        steps = end.steps - begin.steps
        means = end.sums.means(begin.sums, steps)
        earlier, steps_before = None, 0
        if before is not None:
            steps_before = before[1].steps - before[0].steps
            give_way()
            earlier = before[1].sums.means(before[0].sums, steps_before)
        give_way()
        own = means.ranks[:, DISTANCE] + means.groups[self._of]
        give_way()
        seconds, sync, waited, unequal, varied, *caused = (means.job * steps).tolist()
        return Window(
            begin=begin,
            steps=steps,
            elapsed=end.at - begin.at,
            seconds=seconds,
            longest=own.max().item(),
            median=quantile(0.5, own).item(),
            sync=sync,
            waited=waited,
            unequal=unequal,
            varied=varied,
            caused=tuple(caused),
            groups=tuple(
                self._group(position, means, earlier, watched)
                for position in range(len(self._names))
            ),
            steps_before=steps_before,
        )

    def own(self, begin: Mark, end: Mark) -> dict[int, float]:
        """Return each rank's own time, in seconds per step."""
        means = end.sums.means(begin.sums, end.steps - begin.steps)
        own = means.ranks[:, DISTANCE] + means.groups[self._of]
        return dict(zip(self._ranks, own.tolist(), strict=True))

    def path(self, rank: int, marks: Sequence[Mark]) -> list[float]:
        """Return the distances of *rank* from the baseline, summed up to each of *marks*."""
        at = self._at[rank]
        return [mark.sums.ranks[at, DISTANCE].item() for mark in marks]

    def group_path(self, name: str, marks: Sequence[Mark]) -> list[float]:
        """Return the baseline of group *name*, summed up to each of *marks*."""
        at = self._names.index(name)
        return [mark.sums.groups[at].item() for mark in marks]

    def _group(
        self, position: int, means: JoinSums, earlier: JoinSums | None, watched: Collection[int]
    ) -> WindowGroup:
        members = self._members[position]
        normal = means.groups[position].item()
        rows = means.ranks[members]
        now = _Members(rows)
        before = None if earlier is None else _Members(earlier.ranks[members])
        give_way()
        rises = now.excess - before.excess if before else torch.zeros_like(now.excess)
        rise = baseline(rises).item()
        further = torch.maximum(now.excess, rises - rise)
        give_way()
        known = self._positions(position, watched)
        further[known] = -math.inf  # Watched ranks are added below.
        best = further.topk(min(MOST_STANDING, len(members)))
        least = STANDS_OUT_RATIO * (normal + now.usual)
        standing = best.indices[best.values > least].tolist() + known
        give_way()
        return WindowGroup(
            name=self._names[position],
            ranks=len(members),
            baseline=normal + now.usual,
            stages=tuple(now.stages.tolist()),
            spread=_spread(rows[:, DISTANCE]),
            variance=quantile(0.5, now.variances).item(),
            standing=tuple(
                Standing(
                    rank=self._ranks[int(members[at])],
                    busy=normal + rows[at, DISTANCE].item(),
                    excess=now.excess[at].item(),
                    variance=now.variances[at].item(),
                    caused=rows[at, CAUSED].item(),
                    stages=tuple((rows[at, FIRST_STAGE:] - now.stages).tolist()),
                    before=before.excess[at].item() if before else 0.0,
                    variance_before=before.variances[at].item() if before else 0.0,
                )
                for at in standing
            ),
            rise=rise,
            rise_spread=_spread(rises) if before else 0.0,
            baseline_before=(
                earlier.groups[position].item() + before.usual if earlier and before else 0.0
            ),
        )

    def _positions(self, position: int, watched: Collection[int]) -> list[int]:
        """Return the positions of the *watched* ranks among the members of a group."""
        name = self._names[position]
        return [
            int(torch.searchsorted(self._members[position], self._at[rank]))
            for rank in sorted(watched)
            if self.groups.get(rank) == name
        ]


class _Members:
    """Statistics of a group's members, from their mean *rows*."""

    def __init__(self, rows: Tensor) -> None:
        self.usual = baseline(rows[:, DISTANCE]).item()
        self.excess = rows[:, DISTANCE] - self.usual
        self.stages = baseline(rows[:, FIRST_STAGE:].T.contiguous())[:, 0]
        give_way()
        self.variances = _variances(rows)
        give_way()


def _variances(rows: Tensor) -> Tensor:
    """Return the step-to-step variance of each distance; of two ranks that of their difference."""
    means, squares = rows[:, DISTANCE], rows[:, DISTANCE_SQUARED]
    if len(rows) == 2:
        both = squares.sum() - (means[0] - means[1]) ** 2
        return both.clamp(min=0.0).expand(2)
    return (squares - means.square()).clamp(min=0.0)


def _spread(values: Tensor) -> float:
    return spread_of(len(values), lambda share: quantile(share, values).item())


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64, device="cpu")
