"""The report on a job as the exporters of its nodes see it, from each one's live summary."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from exporter.live import states
from exporter.live.page import LiveSummary
from rank_probe.judge.verdict import Change
from rankskew.client.fetch import ANYONE, Access
from rankskew.diagnose.findings import all_findings, late_events, report, slower
from rankskew.diagnose.model import CannotTell, Finding, JobFacts, Report
from rankskew.top.from_exporter import ask_all, merged
from rankskew.top.model import NO_RANK, JobStatus, no_such_job, several_jobs

NO_HISTORY: Final = (
    "An exporter knows its own node, and nothing of earlier: a Prometheus with the rules has the "
    "past, costs, and alerts."
)


def read_exporters(urls: Sequence[str], job_id: str | None, access: Access = ANYONE) -> Report:
    """Return the report that the exporters at *urls* allow; raises Trouble and CannotTell."""
    nodes, silent = ask_all(urls, access)
    if not nodes:
        raise silent[0]
    job = _one(merged(nodes), job_id)
    facts = _job_facts(job, nodes)
    findings, more = all_findings(facts)
    findings += _lost_gpus(facts, nodes)
    findings += [slower(each, why=_why(each, job.job_id, nodes)) for each in job.changes]
    at = max(each.timestamp_seconds or 0.0 for each in nodes)
    told = report(facts, ", ".join(urls), at, findings, more, late_events(job))
    history = (NO_HISTORY,) if findings else ()
    return replace(told, unjudged=(*history, *told.unjudged, *map(str, silent)))


def _one(jobs: Sequence[JobStatus], job_id: str | None) -> JobStatus:
    if not jobs:
        raise CannotTell(NO_RANK)
    chosen = [job for job in jobs if job_id in (None, job.job_id)]
    if not chosen:
        raise CannotTell(no_such_job(job_id or "", jobs))
    if len(chosen) > 1:
        raise CannotTell(several_jobs(sorted(job.job_id for job in jobs)))
    return chosen[0]


def _job_facts(job: JobStatus, nodes: Sequence[LiveSummary]) -> JobFacts:
    views = [each for node in nodes for each in node.jobs if each.job_id == job.job_id]
    far = [view.verdict.suspect for view in views]
    far += [{"rank": str(late.rank), **late.at} for late in job.late]
    return JobFacts(
        job,
        nodes={int(at["rank"]): at["node"] for at in far if "node" in at},
        lines={rank.rank: rank.late_lines for view in views for rank in view.ranks},
        silent={rank.rank: rank.report_age_seconds or 0.0 for rank in job.ranks if rank.silent},
        reasons=() if job.reason is None or job.state == states.STARTING else (job.reason,),
        judge="node" if {view.verdict.judge for view in views} == {"node"} else None,
    )


def _why(
    change: Change, job_id: str, nodes: Sequence[LiveSummary]
) -> Iterator[tuple[str, str, str]]:
    """Yield the cause of *change* that the exporter of each node tells, for slower()."""
    for node in nodes:
        for verdict in (job.verdict for job in node.jobs if job.job_id == job_id):
            if len(verdict.changes) != len(verdict.change_causes):
                continue  # Skip lists of another release that do not match.
            for told, cause in zip(verdict.changes, verdict.change_causes, strict=True):
                is_same = (told.peer_group, told.stage) == (change.peer_group, change.stage)
                if cause is not None and is_same:
                    yield f"{cause.cause} {cause.detail}", node.host, cause.sentence


def _lost_gpus(facts: JobFacts, nodes: Sequence[LiveSummary]) -> Iterator[Finding]:
    """Yield a finding for each GPU of the job that does not answer."""
    for gpu in (each for node in nodes for each in node.gpus if not each.up):
        ranks = [each.rank for each in gpu.ranks if each.job_id == facts.job.job_id]
        if ranks:
            place = facts.place(ranks[0])
            said = f"The GPU of rank {ranks[0]} on {place.node or 'its node'} does not answer."
            yield Finding("gpu_lost", said, rank=ranks[0], ranks=tuple(ranks), place=place)
