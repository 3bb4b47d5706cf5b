"""Stretches of a run: periods with the same ranks, and the steps that all of them have.

A judge compares ranks over steps that all of them have. In a trace, ranks may come and go, and rows
may be missing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from exporter.replay.times import Timeline
from exporter.replay.traces import Run
from rank_probe.windows import LEAST_STEPS


@dataclass(frozen=True, slots=True)
class Stretch:
    """A period in which exactly *ranks* were there, in scaled seconds since the run began.

    *steps* are those that all of them have, in order, out of *recorded* ones.
    """

    ranks: tuple[int, ...]
    steps: Sequence[int]
    recorded: int
    begin: float
    end: float


def stretches(run: Run, line: Timeline) -> list[Stretch]:
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


def left_out(run: Run, found: Sequence[Stretch]) -> list[int]:
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


def _stretch(run: Run, line: Timeline, ranks: tuple[int, ...], numbers: Sequence[int]) -> Stretch:
    ends = [line.ends[rank][step] for step in numbers for rank in run.steps[step]]
    begins = [
        line.ends[rank][step] - line.scale * sum(stages.values())
        for step in numbers[:1]
        for rank, stages in run.steps[step].items()
    ]
    return Stretch(
        ranks=ranks,
        steps=[step for step in numbers if all(rank in run.steps[step] for rank in ranks)],
        recorded=len(numbers),
        begin=max(min(begins), 0.0),
        end=max(ends),
    )
