"""The view as JSON, for programs."""

import json
from dataclasses import asdict
from typing import Any

from rankskew.top.model import FleetStatus, JobStatus


def as_json(fleet: FleetStatus, with_ranks: bool) -> str:
    """Return *fleet* as one JSON object; the jobs have their ranks if *with_ranks*."""
    focus = fleet.focus if with_ranks else None
    jobs = [focus] if focus is not None else fleet.jobs
    said = {
        "source": fleet.source,
        "timestamp_seconds": fleet.timestamp_seconds,
        "troubles": list(fleet.troubles),
        "jobs": [_job(job, with_ranks) for job in jobs],
    }
    return json.dumps(said, indent=2)


def _job(job: JobStatus, with_ranks: bool) -> dict[str, Any]:
    said = asdict(job)
    rank, stage = job.culprit or (None, None)
    said["culprit"] = None if rank is None else {"rank": rank, "stage": stage}
    if not with_ranks:
        del said["ranks"], said["ranks_left_out"]
    return said
