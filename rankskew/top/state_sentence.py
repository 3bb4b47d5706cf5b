"""A job's state in a sentence, from series; an exporter says it itself."""

from collections.abc import Mapping, Sequence
from typing import Final

from exporter.live import states
from exporter.live.sentences import late_sentence
from exporter.live.wording import duration, listed
from rankskew.client.prometheus import Sample
from rankskew.top.model import UNKNOWN, JobStatus

Samples = Mapping[str, Sequence[Sample]]

# What needs no figures.
SENTENCES: Final = {
    states.STARTING: "The job is starting: its ranks must first finish steps that can be compared.",
    # Only if the series of the late ranks are already gone.
    states.SLOW_NODE: "The ranks of a node are late.",
    states.STRAGGLER: "A rank is late.",
    states.ROTATING: "No rank is to blame: a different one is late in each step.",
    states.HEALTHY: "No rank is late.",
    states.FINISHED: "All ranks have finished.",
    states.NO_PROBE: "No probe reports, so it is not known how the ranks keep up.",
}


def state_sentence(job: JobStatus, samples: Samples) -> str:
    """Return what the state of *job* means; *samples* are what is known of it."""
    late = [each for each in job.late if each.is_called_late]
    if job.state in (states.STRAGGLER, states.SLOW_NODE, UNKNOWN) and late:
        return late_sentence(late, job.world_size or len(late))
    if job.state == states.HUNG:
        return _hung(job, samples.get("rank_stage:rankskew_hang_suspect:group", ()))
    if job.state == states.EXPORTER_DOWN:
        nodes = sorted(
            {s["instance"] for s in samples.get("node:rankskew_exporter_down:group", ())}
        )
        where = f" on {listed(nodes)}" if nodes else " of the job"
        return f"An exporter{where} does not answer, so what its ranks do is not known."
    if job.state == states.RANKS_MISSING:
        return _missing(job, samples.get("job:rankskew_ranks_missing:sum", ()))
    if job.state == states.NOT_JUDGEABLE:
        return f"Cannot judge this job: {(job.reason or 'no verdict').replace('_', ' ')}."
    return SENTENCES.get(job.state, "")


def _hung(job: JobStatus, suspects: Sequence[Sample]) -> str:
    since = "" if job.since_seconds is None else f" for {duration(job.since_seconds)}"
    if not suspects:
        return f"No step{since}: all ranks wait in a collective."
    suspect = suspects[0]
    be = "is" if suspect["stage"] in ("frozen", "finished", "busy") else "is stuck in"
    return (
        f"No step{since}: rank {suspect['rank']} on {suspect['instance']} {be} {suspect['stage']}."
    )


def _missing(job: JobStatus, missing: Sequence[Sample]) -> str:
    if missing:
        return f"{missing[0].value:.0f} of {job.world_size} ranks are not seen by any exporter."
    return "Ranks have gone silent: dead, stopped, or unable to reach their exporter."
