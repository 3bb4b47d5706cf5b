"""The clock of a trace: when its steps ended, and its stretches with the same ranks.

A judge compares ranks over steps that all of them have. In a trace, ranks may come and go, and rows
may be missing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rank_probe.judge.windows import LEAST_STEPS
from rankskew.accounting.step import SYNC
from rankskew.replay.traces import Run

# time_s is rounded in the files.
ROUNDING_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class TraceTimeline:
    """When the steps of a run ended, in *scaled* seconds since its first step began.

    *ends* [rank] are in step order and never decrease. *origin_seconds* is the time_s at which the
    run begins, unscaled.
    """

    scale: float
    origin_seconds: float
    ends: Mapping[int, Mapping[int, float]]

    @property
    def seconds(self) -> float:
        """The duration of the run."""
        return max(max(ends.values()) for ends in self.ends.values())


def timeline(run: Run, scale: float) -> TraceTimeline:
    """Place the steps of *run* in time, *scale* times slower than recorded.

    The probe's time_s is the end of a step. If a first step takes longer than its time_s, it cannot
    have ended then, so time_s is the beginning of each step in that trace. If time_s is the same
    everywhere, steps follow each other.
    """
    lengths = {
        rank: {step: sum(run.steps[step][rank].values()) for step in sorted(times)}
        for rank, times in run.times.items()
    }
    at_begin = any(
        length > run.times[rank][step] + ROUNDING_SECONDS
        for rank, steps in lengths.items()
        for step, length in list(steps.items())[:1]
    )
    stands_still = len({time for times in run.times.values() for time in times.values()}) == 1
    ends: dict[int, dict[int, float]] = {}
    for rank, steps in lengths.items():
        ends[rank], before = {}, 0.0
        for step, length in steps.items():
            before = max(before, run.times[rank][step] + at_begin * length)
            before += length * (stands_still and bool(ends[rank]))
            ends[rank][step] = before
    # A step begins at once for all of its ranks: clocks of nodes and rounding differ only a little.
    origin = min(
        ends[peer][first] - lengths[peer][first]
        for steps in lengths.values()
        for first in list(steps)[:1]
        for peer in run.steps[first]
    )
    placed = {
        rank: {step: (end - origin) * scale for step, end in of_rank.items()}
        for rank, of_rank in ends.items()
    }
    return TraceTimeline(scale, origin, placed)


def has_sync(run: Run) -> bool:
    """Return whether any wait was measured; all zeros mean none."""
    return any(stages.get(SYNC) for ranks in run.steps.values() for stages in ranks.values())


# ---- Stretches ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TraceStretch:
    """A period in which exactly *ranks* were there, in scaled seconds since the run began.

    *steps* are those that all of them have, in order.
    """

    ranks: tuple[int, ...]
    steps: Sequence[int]
    begin: float
    end: float


def stretches(run: Run, line: TraceTimeline) -> list[TraceStretch]:
    """Return the stretches of *run*, in order.

    A rank is there from its first row to its last, except where it lacks LEAST_STEPS consecutive
    steps. Ranks with too few rows to be judged are left out: with them, hardly any step is whole.
    """
    numbers = sorted(run.steps)
    places = {step: place for place, step in enumerate(numbers)}
    there = {
        rank: list(_presences(sorted(places[step] for step in times), len(numbers)))
        for rank, times in run.times.items()
    }
    borders = sorted({border for spans in there.values() for span in spans for border in span})
    found = []
    for first, after in pairwise(borders):
        ranks = tuple(
            rank
            for rank in sorted(there)
            if any(begin <= first and after <= end for begin, end in there[rank])
        )
        if ranks:
            found.append(_stretch(run, line, ranks, numbers[first:after]))
    return found


def left_out(run: Run, found: Sequence[TraceStretch]) -> list[int]:
    """Return the ranks that are in none of the stretches *found*."""
    return sorted(run.times.keys() - {rank for stretch in found for rank in stretch.ranks})


def _presences(places: Sequence[int], steps: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of places in which a rank with rows at these *places* was there."""
    gaps = [at for at in range(1, len(places)) if places[at] - places[at - 1] > LEAST_STEPS]
    for start, stop in pairwise([0, *gaps, len(places)]):
        first, last = places[start], places[stop - 1]
        # At the beginning and end of a run, ranks may be some rows apart.
        begin = first if first >= LEAST_STEPS else 0
        end = last + 1 if steps - last > LEAST_STEPS else steps
        rows = stop - start
        if rows >= min(LEAST_STEPS, steps / 2) and 2 * rows >= last + 1 - first:
            yield begin, end


def _stretch(
    run: Run, line: TraceTimeline, ranks: tuple[int, ...], numbers: Sequence[int]
) -> TraceStretch:
    ends = [line.ends[rank][step] for step in numbers for rank in run.steps[step]]
    begins = [
        line.ends[rank][step] - line.scale * sum(stages.values())
        for step in numbers[:1]
        for rank, stages in run.steps[step].items()
    ]
    return TraceStretch(
        ranks=ranks,
        steps=[step for step in numbers if all(rank in run.steps[step] for rank in ranks)],
        begin=max(min(begins), 0.0),
        end=max(ends),
    )
