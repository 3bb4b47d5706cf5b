"""A job on the live page: with its probes' reports, or known only from its processes."""

from collections.abc import Sequence
from dataclasses import dataclass

from exporter.gpu_faults.fault import STANDS_STILL, UNUSED, Told
from exporter.live import states
from exporter.live.causes import Causes, WhySlower
from exporter.live.first_actions import first_action
from exporter.live.ranks import RankView, view_unprobed
from exporter.live.summary import JobVerdict, job_verdict, why_changed
from exporter.processes.rank_gpus import RankOnGpu
from exporter.ranks.jobs import NodeJob
from exporter.vocabulary import words
from rank_probe.process import identity


@dataclass(frozen=True, slots=True)
class JobView:
    """One job on the page; *ranks* are those on this node only.

    A job that is not *probed* is known only from its processes on the GPUs.
    """

    job_id: str
    world_size: int
    coverage: str
    steps: int
    step_seconds: float | None
    verdict: JobVerdict
    ranks: list[RankView]
    probed: bool = True


def view_job(
    job: NodeJob,
    ranks: Sequence[RankView],
    unprobed: Sequence[RankView],
    causes: Causes,
    why_slower: WhySlower,
) -> JobView:
    """Describe *job* with its *ranks* here that report and those here that run *unprobed*."""
    world_size = job.world_size or max(rank.snapshot.world_size for rank in job.ranks)
    steps = [rank.step_seconds for rank in ranks if rank.step_seconds is not None]
    return JobView(
        job_id=job.job_id,
        world_size=world_size,
        coverage=f"{len(ranks)} of {world_size} ranks",
        steps=max(rank.steps for rank in ranks),
        step_seconds=sum(steps) / len(steps) if steps else None,
        verdict=why_changed(job_verdict(job, ranks, len(unprobed), causes), job.job_id, why_slower),
        ranks=[*ranks, *unprobed],
    )


def view_unprobed_job(
    job_id: str, found: Sequence[RankOnGpu], host: str, faults: Sequence[Told] = ()
) -> JobView:
    """Describe a job none of whose ranks here reports; *faults* are those of the node's GPUs."""
    ranks = [view_unprobed(rank, host) for rank in found]
    world_size = max(len(ranks), *map(_world_size, found), 0)
    here = f"{len(ranks)} of {world_size} ranks" if ranks else "none of its ranks"
    state = _unprobed_state(job_id, ranks, faults)
    known = words.STATES[state]
    alert = known.runbook if known.alerts else None
    said = f"No probe reports: {here} run on this node, and whether they keep up is not known."
    return JobView(
        job_id=job_id,
        world_size=world_size,
        coverage=here,
        steps=0,
        step_seconds=None,
        verdict=JobVerdict(
            state,
            said if state == states.NO_PROBE else f"{known.sentence} {said}",
            first_action=first_action(job_id, state, None, [], ranks, alert),
            runbook=known.runbook,
            alert=alert,
        ),
        ranks=ranks,
        probed=False,
    )


def _unprobed_state(job_id: str, ranks: Sequence[RankView], faults: Sequence[Told]) -> str:
    mine = [(who[2], fault.fault) for _, who, fault in faults if who[0] == job_id]
    if ranks and all((str(rank.rank), STANDS_STILL) in mine for rank in ranks):
        return states.STANDS_STILL
    return states.UNUSED_GPUS if ("", UNUSED) in mine else states.NO_PROBE


def _world_size(rank: RankOnGpu) -> int:
    environment = {} if rank.process is None else rank.process.environment or {}
    who = identity.from_environment(environment)
    return 0 if who is None else who.world_size
