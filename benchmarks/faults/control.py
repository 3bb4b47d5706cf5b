"""The same job with the probe and without it, side by side: whose are its pauses?"""

import time
from pathlib import Path
from typing import Final

from benchmarks.faults.job import RANKS, Job
from benchmarks.faults.killing import FIRST_STEPS, MOST_PAUSE_SECONDS
from benchmarks.faults.rows import Row, row
from demo.stack import Exporter

SECONDS: Final = 180.0
WITHOUT: Final = {rank: {"RANK_PROBE": "0"} for rank in range(RANKS)}


def undisturbed(directory: Path) -> list[Row]:
    """Train twice at once, without a fault, and return the pauses of either job."""
    with (
        Exporter(directory) as exporter,
        Job(directory / "with", exporter.target, job_id="with") as probed,
        Job(directory / "without", exporter.target, WITHOUT, "without") as plain,
    ):
        time.sleep(SECONDS)
        for job in (probed, plain):
            job.end()
        return [*_rows("with the probe", probed), *_rows("without it", plain)]


def _rows(which: str, job: Job) -> list[Row]:
    paused = [s.paused_seconds for life in job.lives() for s in life.steps[FIRST_STEPS:]]
    return [
        row(f"no fault, {which}: steps", len(paused)),
        row(f"no fault, {which}: pauses over 1 ms", sum(s > MOST_PAUSE_SECONDS for s in paused)),
        row(f"no fault, {which}: pause of a step, most ms", 1e3 * max(paused)),
    ]
