"""A rank against its own past, for jobs in which no wait is measured.

Where no rank is known to wait for another, ranks may differ for good: their GPUs are shared, or of
two kinds. A rank's time relative to its peers is therefore compared with its own past, and with how
much it wandered there. Only a rank that was far off from the beginning is reported for that alone.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from rank_probe.judge.bins import spread
from rank_probe.judge.changes import DEVIATIONS, LEFT
from rank_probe.judge.evidence import evidence_on, furthest
from rank_probe.judge.rises import (
    GUESSED,
    LEAST_PAST,
    LEAST_PEERS,
    GroupSample,
    Rise,
    beyond_since,
    known_median,
    medians,
    risen,
    values_of,
)
from rank_probe.judge.verdict import UNSYNCED, Late
from rank_probe.judge.windows import LEAST_OWN_SECONDS, Mark, MarkHistory, Reduction

# The least rise by number of samples; a sample has the steps between two verdicts.
LEAST_RISES: Final = {8: 0.11, 16: 0.09, 32: 0.07}
# The same for merged samples, which show small rises that develop over hours.
MERGED: Final = 8
LEAST_LONG_RISES: Final = {8: 0.07, 16: 0.06, 32: 0.05}
MOST_SAMPLES: Final = 256
# Rank 0 does not compare more ranks than this: it would take more than 40 ms.
MOST_RANKS: Final = 256
# A rank that was always this far from its peers, also in spreads, is reported for that.
FAR_APART, APART_SPREADS = 0.25, 5.0
# A rank is back after this share of its stretch, and of the samples since its onset.
OVER_SHARE, LASTING_SHARE = 0.75, 0.125
# An incident continues after a gap shorter than this share of its length.
GAP_SHARE: Final = 0.25


class Lasted(NamedTuple):
    """A rank that was slow from *onset* to *end*, in seconds of the clock."""

    rank: int
    onset: float
    end: float


@dataclass(slots=True)
class Slowed:
    """A rank that is slower than its *level* by *more*, since *onset*, after the step *first*.

    *stretch* samples showed it, merged if *is_long*. Unless it *has_risen*, it was always slow.
    """

    rank: int
    level: float
    more: float
    stretch: int
    is_long: bool
    onset: float
    first: int
    confidence: float
    stage: str = ""
    has_risen: bool = True


class OwnPast:
    """Compares each rank of a job with its own past, if there are at most MOST_RANKS."""

    def __init__(self, reduction: Reduction, history: MarkHistory) -> None:
        self._reduction = reduction
        self._history = history
        self._until = -math.inf
        is_small = len(reduction.groups) <= MOST_RANKS
        names = sorted(set(reduction.groups.values())) if is_small else []
        self._groups = [
            PeerPasts(name, [rank for rank, group in reduction.groups.items() if group == name])
            for name in names
        ]

    @property
    def ended(self) -> list[Lasted]:
        """Return the ranks that were slow for a while, and when exactly."""
        return [lasted for group in self._groups for _, lasted in group.lasted]

    def named(self, end: Mark) -> list[Late]:
        """Return the slower ranks after the steps up to *end*: the largest lasting excess first."""
        if not self._groups:
            return []
        marks = [each for each in self._history.marks if each.at >= self._until]
        for begin, after in pairwise(marks):
            own = self._reduction.own(begin, after)
            for group in self._groups:
                group.add(begin, after, own)
        self._until = end.at
        late = [
            self._late(group, slowed, end)
            for group in self._groups
            for slowed in group.slowed.values()
        ]
        return sorted(late, key=lambda each: (-each.ratio * each.since_seconds, each.rank))

    def _late(self, group: "PeerPasts", slowed: Slowed, end: Mark) -> Late:
        slowed.stage = slowed.stage or self._stage(slowed, end)
        return Late(
            rank=slowed.rank,
            peer_group=group.name,
            stage=slowed.stage,
            kind=UNSYNCED,
            ratio=group.excess(slowed) / slowed.level,
            gpus={slowed.stage: 0.0},
            since_seconds=end.at - slowed.onset,
            steps=end.steps - slowed.first,
            confidence=slowed.confidence,
            has_risen=slowed.has_risen,
        )

    def _stage(self, slowed: Slowed, end: Mark) -> str:
        """Return the stage that has grown most since the onset, beside the peers."""
        marks = self._history.marks
        onset = next((each for each in marks[:-1] if each.at >= slowed.onset), marks[-2])
        more = self._excess(slowed.rank, onset, end)
        if marks[0].steps < onset.steps:
            before = self._excess(slowed.rank, marks[0], onset)
            more = [a - b for a, b in zip(more, before, strict=True)]
        return furthest(more)

    def _excess(self, rank: int, begin: Mark, end: Mark) -> list[float]:
        """Return by how much it exceeds its peers in each stage, in seconds per step."""
        window = self._reduction.window(begin, end, [rank])
        return list(evidence_on(rank, window).standing.stages)


class PeerPasts:
    """The pasts of the *ranks* of the peer group *name*.

    *slowed* are those that are slow now, *lasted* those that were.
    """

    def __init__(self, name: str, ranks: Sequence[int]) -> None:
        self.name = name
        self.slowed: dict[int, Slowed] = {}
        self.lasted: list[tuple[Slowed, Lasted]] = []
        self._ranks = ranks
        self._apart: list[float] = []
        self._learned: list[GroupSample] = []
        self._samples: deque[GroupSample] = deque(maxlen=MOST_SAMPLES)
        self._levels: list[float] = []
        self._long: deque[GroupSample] = deque(maxlen=MOST_SAMPLES)
        self._unmerged: list[GroupSample] = []

    def add(self, begin: Mark, end: Mark, own: Mapping[int, float]) -> None:
        """Add the steps between *begin* and *end*, in which the ranks needed *own* seconds each."""
        times = [own[rank] for rank in self._ranks]
        if len(times) < 2 or min(times) < LEAST_OWN_SECONDS:
            return
        sample = GroupSample(begin.at, end.at, begin.steps, times)
        if self._apart:
            self._take(sample)
            self._find(self._samples, self._levels, LEAST_RISES)
            self._forget()
            return
        self._learned.append(sample)
        if len(self._learned) >= LEAST_PAST:
            self._learn()

    def _learn(self) -> None:
        """Learn the ranks' lasting differences, and name the ranks that are too far off."""
        alike = [1.0] * len(self._ranks)
        self._apart = medians([_relative(each, alike) for each in self._learned])
        for sample in self._learned:
            self._take(sample)
        self._learned.clear()
        for position, far in enumerate(self._apart):
            others = [each for at, each in enumerate(self._apart) if at != position]
            values = values_of(position, self._samples)
            noise = DEVIATIONS * GUESSED * spread(values) / math.sqrt(LEAST_PAST)
            wide = APART_SPREADS * spread(others) if len(others) >= LEAST_PEERS else 0.0
            needed = max(FAR_APART, noise, wide, 2 * (max(others) - 1))
            if far - 1 > needed:
                self._name(position, Rise(1.0, far - 1, needed, LEAST_PAST), is_long=False)
                self.slowed[self._ranks[position]].has_risen = False

    def _take(self, sample: GroupSample) -> None:
        sample = _relative(sample, self._apart)
        self._samples.append(sample)
        self._unmerged.append(sample)
        if len(self._unmerged) == MERGED:
            first = self._unmerged[0]
            merged = GroupSample(first.begin, sample.at, first.first, medians(self._unmerged))
            self._long.append(merged)
            self._unmerged.clear()
            self._levels = medians(self._samples)
            self._find(self._long, medians(self._long), LEAST_LONG_RISES)

    # ---- Since when ----------------------------------------------------------------------------

    def _find(
        self, samples: Sequence[GroupSample], levels: Sequence[float], least: Mapping[int, float]
    ) -> None:
        """Name the ranks that the last of *samples* show to be slower than their *levels*."""
        shortest, smallest = min(least), min(least.values())
        if len(samples) < LEAST_PAST + shortest:
            return
        recent = [samples[at].values for at in range(-shortest, 0)]
        for position, rank in enumerate(self._ranks):
            now = known_median([values[position] for values in recent])
            # Nearly all are not worth a closer look.
            if rank in self.slowed or not now > levels[position] * (1 + smallest / 2):
                continue
            if (found := risen(position, samples, least)) is not None:
                self._name(position, found, is_long=samples is self._long)

    def _name(self, position: int, rise: Rise, *, is_long: bool) -> None:
        rank = self._ranks[position]
        since = self._since(position, is_long=is_long)
        middle = rise.level + rise.more / 2
        first = since[beyond_since([each.values[position] - middle for each in since])]
        for known, lasted in self.lasted:
            gap = GAP_SHARE * (lasted.end - lasted.onset)
            if known.rank == rank and first.begin - lasted.end < gap:
                self.lasted.remove((known, lasted))
                self.slowed[rank] = known
                return
        self.slowed[rank] = Slowed(
            rank=rank,
            level=rise.level,
            more=rise.more,
            stretch=rise.stretch,
            is_long=is_long,
            onset=first.begin,
            first=first.first,
            confidence=rise.more / rise.needed,
        )

    def _since(self, position: int, *, is_long: bool) -> list[GroupSample]:
        """Return the samples that can show an onset or end, older ones merged."""
        recent = list(self._samples)
        older = [each for each in self._long if each.at <= recent[0].begin] if is_long else []
        return [each for each in older + recent if not math.isnan(each.values[position])]

    # ---- How much, until when ------------------------------------------------------------------

    def excess(self, slowed: Slowed) -> float:
        """Return by how much the rank exceeds its level since its onset."""
        position = self._ranks.index(slowed.rank)
        since = [each for each in self._samples if each.begin >= slowed.onset]
        if since[0].begin > slowed.onset:
            since = [each for each in self._long if each.begin >= slowed.onset] or since
        return max(known_median([each.values[position] for each in since]) - slowed.level, 0.0)

    def _forget(self) -> None:
        """End the incidents of the ranks that are back at their level."""
        for slowed in list(self.slowed.values()):
            position = self._ranks.index(slowed.rank)
            samples = self._long if slowed.is_long else self._samples
            since = [each.values[position] for each in samples if each.at > slowed.onset]
            enough = max(slowed.stretch * OVER_SHARE, len(since) * LASTING_SHARE)
            now = known_median(since[-round(enough) :])
            if now < slowed.level + LEFT * slowed.more:
                self._end(slowed, position)

    def _end(self, slowed: Slowed, position: int) -> None:
        since = self._since(position, is_long=slowed.is_long)
        since = [each for each in since if each.begin >= slowed.onset]
        middle = slowed.level + slowed.more / 2
        first = since[max(beyond_since([middle - each.values[position] for each in since]), 1)]
        for each in (*self._samples, *self._long):
            if slowed.onset < each.at and each.begin < first.begin:
                each.values[position] = math.nan
        del self.slowed[slowed.rank]
        self.lasted.append((slowed, Lasted(slowed.rank, slowed.onset, first.begin)))


def _relative(sample: GroupSample, apart: Sequence[float]) -> GroupSample:
    """Return *sample* as ratios of the usual time, that of the lower third of the ranks.

    Times are first divided by the ranks' usual ratios, *apart*. Otherwise all ranks would get the
    noise of the one rank that is at the quantile.
    """
    alike = sorted(time / far for time, far in zip(sample.values, apart, strict=True))
    usual = alike[(len(alike) - 1) // 3]
    return sample._replace(values=[time / usual for time in sample.values])
