"""Why a job with ranks on this node is slower than before, as far as this node's past tells."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Final

from exporter.causes.explain import explain_change
from exporter.causes.model import Cause, Figures
from exporter.evidence.sampler import Sampler
from exporter.ranks.jobs import NodeJob
from rank_probe.judge.verdict import Change

# How far before the onset the comparison reaches, and how much of that and of the time since must
# have been sampled.
BEFORE_SECONDS: Final = 600.0
LEAST_SECONDS: Final = 30.0

# A job, a peer group, and the stage that takes longer.
ChangeKey = tuple[str, str, str]


class ChangeCauses:
    """The causes that are reported for changes; for the event loop.

    The first cause found is kept until the change is over. Soon after the onset, both times are
    known best; after half an hour, the evidence no longer reaches back to the onset.
    """

    def __init__(self) -> None:
        self._told: dict[ChangeKey, Cause] = {}

    def of(self, job_id: str, change: Change) -> Cause | None:
        """Return why *change* came to be; None if this node cannot tell."""
        return self._told.get((job_id, change.peer_group, change.stage))

    def look(self, jobs: Sequence[NodeJob], sampler: Sampler) -> None:
        """Explain the changes that the judges of *jobs* report now, and forget all others."""
        told = {}
        for job in jobs:
            for change, onset in _changes(job):
                cause = self.of(job.job_id, change) or _cause(job, change, onset, sampler)
                if cause is not None:
                    told[job.job_id, change.peer_group, change.stage] = cause
        self._told = told


def _changes(job: NodeJob) -> Iterator[tuple[Change, float]]:
    """Yield the changes of all ranks of the job or of a peer group, and when they began.

    Changes of a set of ranks are left out: other ranks on the same node may not be slower.
    """
    aged = job.verdict()
    if aged is None:
        return
    for change in aged.verdict.changes:
        if not change.slower:
            yield change, job.now - aged.age_seconds - change.since_seconds


def _cause(job: NodeJob, change: Change, onset: float, sampler: Sampler) -> Cause | None:
    ranks = [
        rank
        for rank in job.beating
        if rank.snapshot.peer_group == change.peer_group
        and sampler.covered_seconds(rank, onset) >= LEAST_SECONDS
        and sampler.covered_seconds(rank, onset - BEFORE_SECONDS, onset) >= LEAST_SECONDS
    ]
    if not ranks:
        return None
    now = _mean([sampler.figures(rank, onset) for rank in ranks])
    before = _mean([sampler.figures(rank, onset - BEFORE_SECONDS, onset) for rank in ranks])
    # If the GPUs differ, the facts describe the GPU of the first rank.
    facts = sampler.facts(ranks[0], onset)
    return explain_change(change.stage, change.ratio, now, before, facts)


def _mean(figures: Sequence[Figures]) -> dict[str, float]:
    """Return the mean of each figure over the ranks that have it."""
    names = {name for each in figures for name in each}
    return {name: fmean(each[name] for each in figures if name in each) for name in names}
