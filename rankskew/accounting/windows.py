"""Statistics of windows of steps in plain Python, for code that must not need torch.

The formulas are those of rank_probe/join/windows.py; a test checks that the two agree.
"""

from collections.abc import Collection, Mapping, Sequence
from operator import add, sub
from statistics import median

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
from rank_probe.wire.stages import STAGES
from rankskew.accounting.step import SYNC, StageSeconds, baseline, busy_seconds, charge, quantile

Row = list[float]


# A row for each rank with the columns of rank_probe.judge.windows, one with the baseline of each
# group, and one of the job with the columns of Window, *caused* by stage last. In seconds.
Sums = list[Row]
GROUPS, JOB = -2, -1


def _less(sums: Sums, other: Sums) -> Sums:
    """Return *sums* without the steps that are in *other*."""
    return [list(map(sub, a, b)) for a, b in zip(sums, other, strict=True)]


def _mean(sums: Sums, steps: int) -> Sums:
    return [[each / steps for each in row] for row in sums]


class PlainReduction:
    """Adds steps up and makes statistics of them; every step has the same ranks."""

    def __init__(self, peer_groups: Mapping[int, str], nodes: Mapping[int, int]) -> None:
        self.nodes = nodes
        self._ranks = sorted(peer_groups)
        self.groups = peer_groups
        self._names = sorted(set(peer_groups.values()))
        self._members = [
            [at for at, rank in enumerate(self._ranks) if peer_groups[rank] == name]
            for name in self._names
        ]
        self._steps = 0
        self._sums = [
            *([0.0] * (FIRST_STAGE + len(WORK_STAGES)) for _ in self._ranks),
            [0.0] * len(self._names),
            [0.0] * (5 + len(WORK_STAGES)),
        ]

    def add(self, number: int, step: Mapping[int, StageSeconds], at: float) -> Leader:
        """Add one step, which ended *at*; return its leader."""
        sums = self._sums
        charges = charge(step, self.groups)
        busy = [busy_seconds(step[rank]) for rank in self._ranks]
        caused = dict.fromkeys(self._ranks, 0.0)
        by_stage = [0.0] * len(WORK_STAGES)
        for (rank, stage), seconds in charges.caused.items():
            caused[rank] += seconds
            by_stage[STAGES.index(stage)] += seconds
        baselines = [baseline([busy[at] for at in members]) for members in self._members]
        sums[GROUPS] = list(map(add, sums[GROUPS], baselines))
        distances = []
        for members, usual in zip(self._members, baselines, strict=True):
            for member in members:
                rank, distance = self._ranks[member], busy[member] - usual
                distances.append(distance)
                stages = [step[rank].get(stage, 0.0) for stage in WORK_STAGES]
                gained = [distance, distance**2, caused[rank], *stages]
                sums[member] = list(map(add, sums[member], gained))
        length = sum(sum(stages.values()) for stages in step.values()) / len(step)
        sync = sum(stages.get(SYNC, 0.0) for stages in step.values())
        waited, unequal = sum(charges.waited.values()), sum(charges.unequal.values())
        varied = quantile(0.5, distances)
        sums[JOB] = list(map(add, sums[JOB], [length, sync, waited, unequal, varied, *by_stage]))
        self._steps += 1
        pacer, heaviest = charges.pacer, max(baselines)
        lead = busy[self._ranks.index(pacer)] - heaviest
        at_stage = STAGES.index(charges.stage)
        longest = STAGES.index(charges.longest)
        return Leader(number, at, pacer, at_stage, lead, caused[pacer], heaviest, longest)

    def mark(self, at: float) -> Mark:
        """Return the current sums; adding steps replaces rows and never changes them."""
        return Mark(self._steps, at, list(self._sums))

    def window(
        self,
        begin: Mark,
        end: Mark,
        watched: Collection[int] = (),
        before: tuple[Mark, Mark] | None = None,
    ) -> Window:
        """Return what stands out; see rank_probe.judge.windows.Reduction."""
        steps = end.steps - begin.steps
        sums = _less(end.sums, begin.sums)
        means = _mean(sums, steps)
        earlier, steps_before = None, 0
        if before is not None:
            steps_before = before[1].steps - before[0].steps
            earlier = _mean(_less(before[1].sums, before[0].sums), steps_before)
        own = [
            means[GROUPS][position] + means[member][DISTANCE]
            for position, members in enumerate(self._members)
            for member in members
        ]
        seconds, sync, waited, unequal, varied, *caused = sums[JOB]
        return Window(
            begin=begin,
            steps=steps,
            elapsed=end.at - begin.at,
            seconds=seconds,
            longest=max(own),
            median=median(own),
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
        first, last, steps = begin.sums, end.sums, end.steps - begin.steps
        own: dict[int, float] = {}
        for position, members in enumerate(self._members):
            usual = last[GROUPS][position] - first[GROUPS][position]
            for member in members:
                distance = last[member][DISTANCE] - first[member][DISTANCE]
                own[self._ranks[member]] = (usual + distance) / steps
        return own

    def path(self, rank: int, marks: Sequence[Mark]) -> list[float]:
        """Return the distances of *rank* from the baseline, summed up to each of *marks*."""
        at = self._ranks.index(rank)
        return [mark.sums[at][DISTANCE] for mark in marks]

    def group_path(self, name: str, marks: Sequence[Mark]) -> list[float]:
        """Return the baseline of group *name*, summed up to each of *marks*."""
        at = self._names.index(name)
        return [mark.sums[GROUPS][at] for mark in marks]

    def _group(
        self, position: int, means: Sums, earlier: Sums | None, watched: Collection[int]
    ) -> WindowGroup:
        members = self._members[position]
        normal = means[GROUPS][position]
        rows = [means[member] for member in members]
        usual, excess = _apart(rows)
        variances = _variances(rows)
        stages = [baseline(column) for column in zip(*(r[FIRST_STAGE:] for r in rows), strict=True)]
        nothing = [0.0] * len(members)
        baseline_before, excess_before, variances_before, rises = 0.0, nothing, nothing, nothing
        if earlier is not None:
            rows_before = [earlier[member] for member in members]
            usual_before, excess_before = _apart(rows_before)
            baseline_before = earlier[GROUPS][position] + usual_before
            variances_before = _variances(rows_before)
            rises = list(map(sub, excess, excess_before))
        rise = baseline(rises)
        further = [max(a, b - rise) for a, b in zip(excess, rises, strict=True)]
        known = [at for at, member in enumerate(members) if self._ranks[member] in watched]
        others = sorted(set(range(len(members))) - set(known), key=lambda at: -further[at])
        least = STANDS_OUT_RATIO * (normal + usual)
        standing = [at for at in others[:MOST_STANDING] if further[at] > least] + known
        return WindowGroup(
            name=self._names[position],
            ranks=len(members),
            baseline=normal + usual,
            stages=tuple(stages),
            spread=_spread(excess),
            variance=variances[0] if len(members) < 3 else median(variances),
            standing=tuple(
                Standing(
                    rank=self._ranks[members[at]],
                    busy=normal + usual + excess[at],
                    excess=excess[at],
                    variance=variances[at],
                    caused=rows[at][CAUSED],
                    stages=tuple(map(sub, rows[at][FIRST_STAGE:], stages)),
                    before=excess_before[at],
                    variance_before=variances_before[at],
                )
                for at in standing
            ),
            rise=rise,
            rise_spread=_spread(rises),
            baseline_before=baseline_before,
        )


def _apart(rows: Sequence[Row]) -> tuple[float, list[float]]:
    """Return the usual distance of members of a group, and by how much each is over it."""
    distances = [row[DISTANCE] for row in rows]
    usual = baseline(distances)
    return usual, [distance - usual for distance in distances]


def _variances(rows: Sequence[Row]) -> list[float]:
    """Return the step-to-step variance of each distance; of two ranks that of their difference."""
    means, squares = [r[DISTANCE] for r in rows], [r[DISTANCE_SQUARED] for r in rows]
    if len(rows) == 2:
        return [max(sum(squares) - (means[0] - means[1]) ** 2, 0.0)] * 2
    return [max(square - mean**2, 0.0) for square, mean in zip(squares, means, strict=True)]


def _spread(values: Sequence[float]) -> float:
    return spread_of(len(values), lambda share: quantile(share, values))
