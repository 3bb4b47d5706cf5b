"""The judge's verdict on a simulated job: the same on all of its nodes, new in each round."""

import random
from dataclasses import replace
from typing import Final

from benchmarks.scale_job import (
    COMMUNICATION_SECONDS,
    FAULT_RATIO,
    STAGE_SHARES,
    Job,
    State,
)

# How often rank 0 judges, and how much its figures, means of the last minute, vary between rounds.
ROUND_SECONDS: Final = 5.0
NOISE: Final = 0.02
# The straggler was late long before the first scrape.
LATE_SECONDS: Final = 600.0


class Told:
    """The figures of a job's verdict, each by its place in Verdict: field or field.key."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._usual = _usual(job)
        self._round = -1
        self._state: State = {}

    def at(self, elapsed: float) -> State:
        """Return the figures *elapsed* seconds into the run."""
        number = int(elapsed / ROUND_SECONDS)
        if number != self._round:
            self._round = number
            draw = random.Random(f"{self._job.name} {number}")
            found = {name: mean * draw.gauss(1, NOISE) for name, mean in self._usual.items()}
            # For a ratio slightly above 1, only the part above 1 is uncertain.
            found["slowdown"] = 1 + (self._usual["slowdown"] - 1) * draw.gauss(1, NOISE)
            # As many digits as in the judge's verdict.
            self._state = {name: float(f"{value:.6g}") for name, value in found.items()}
        return self._state


def _usual(job: Job) -> State:
    late = {stage: job.charges.straggler[stage] / job.step_seconds for stage in STAGE_SHARES}
    others = job.ranks - (job.straggler is not None)
    rotating = {
        stage: job.charges.others[stage] * others / job.step_seconds for stage in STAGE_SHARES
    }
    return {
        "step_seconds": job.step_seconds,
        "slowdown": job.step_seconds / replace(job, straggler=None).step_seconds,
        "gpus_lost.group": 0.0,
        "gpus_lost.persistent": sum(late.values()),
        "gpus_lost.rotating": sum(rotating.values()),
        "gpus_lost.common": job.ranks * COMMUNICATION_SECONDS / job.step_seconds,
        **{f"rotating.{stage}": gpus for stage, gpus in rotating.items()},
        "late.ratio": FAULT_RATIO,
        **{f"late.gpus.{stage}": gpus for stage, gpus in late.items()},
    }
