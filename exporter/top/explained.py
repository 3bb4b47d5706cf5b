"""Why the rank to look at is late, in the words of its exporter."""

from dataclasses import replace

from exporter.live.states import HUNG
from exporter.top import causes
from exporter.top.model import Job
from exporter.vocabulary.words import cause_in_short
from rank_probe.verdict import NODE


def explained(job: Job) -> Job:
    """Return *job* with the cause of its costliest late rank, and what to do about it first."""
    rank = None if job.culprit is None or job.state == HUNG else job.culprit[0]
    first = next((each for each in job.late if each.rank == rank), None)
    if first is None:
        return job
    of_node = [each for each in job.late if each.wakes and each.kind == NODE]
    cause = causes.of_node(of_node) if first.kind == NODE else first.cause
    if cause is None:
        return job
    is_said = any(cause.sentence in said for said in job.details)
    return replace(
        job,
        cause=cause_in_short(cause.cause, cause.detail),
        details=job.details if is_said else (causes.told(cause), *job.details),
        first_action=cause.first_action or job.first_action,
    )
