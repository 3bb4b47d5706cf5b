"""When the steps of a trace ended, on one clock that starts with the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from exporter.accounting.step import SYNC
from exporter.replay.traces import Run

# time_s is rounded in the files.
ROUNDING_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Timeline:
    """When the steps of a run ended, in *scaled* seconds since its first step began.

    *ends* [rank] are in step order and never decrease; *begins* [rank] is when its first step
    began. *origin_seconds* is the time_s at which the run begins, unscaled.
    """

    scale: float
    origin_seconds: float
    begins: Mapping[int, float]
    ends: Mapping[int, Mapping[int, float]]

    @property
    def seconds(self) -> float:
        """The duration of the run."""
        return max(max(ends.values()) for ends in self.ends.values())


def timeline(run: Run, scale: float) -> Timeline:
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
    begins = {
        rank: min(ends[peer][first] - lengths[peer][first] for peer in run.steps[first])
        for rank, steps in lengths.items()
        for first in list(steps)[:1]
    }
    origin = min(begins.values())
    return Timeline(
        scale,
        origin,
        {rank: (begin - origin) * scale for rank, begin in begins.items()},
        {
            rank: {step: (end - origin) * scale for step, end in of_rank.items()}
            for rank, of_rank in ends.items()
        },
    )


def has_sync(run: Run) -> bool:
    """Return whether any wait was measured; all zeros mean none."""
    return any(stages.get(SYNC) for ranks in run.steps.values() for stages in ranks.values())
