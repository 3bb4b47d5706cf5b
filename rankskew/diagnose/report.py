"""The report on a job, from what is known of it; each finding with what to do about it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rankskew.diagnose.advice import advice, filled, situations
from rankskew.diagnose.late import late_findings
from rankskew.diagnose.loss import loss
from rankskew.diagnose.model import Event, Finding, JobFacts, Report, Step, ordered
from rankskew.diagnose.situations import situation_findings, unjudged


def all_findings(facts: JobFacts) -> tuple[list[Finding], list[str]]:
    """Return what is wrong with a job, the costliest first, and who else is late."""
    late, more = late_findings(facts)
    return ordered([*situation_findings(facts), *late]), more


def report(
    facts: JobFacts,
    source: str,
    at_seconds: float | None,
    findings: Sequence[Finding],
    more: Iterable[str],
    events: Iterable[Event],
) -> Report:
    """Return the report with those *findings*."""
    job = facts.job
    return Report(
        source=source,
        job_id=job.job_id,
        cluster=job.cluster,
        state=job.state,
        sentence=job.sentence,
        at_seconds=at_seconds,
        world_size=job.world_size,
        loss=loss(job.lost_by_kind, facts.late_gpus) if job.lost_by_kind else None,
        slowdown=job.slowdown,
        gpu_hour_price=facts.gpu_hour_price,
        findings=tuple(advised(each, job.job_id) for each in findings),
        more=tuple(more),
        events=tuple(sorted(events, key=lambda event: event.since_seconds)),
        unjudged=tuple(unjudged(facts)),
    )


def advised(finding: Finding, job_id: str) -> Finding:
    """Return *finding* with what to do first, all that can be done, the proof and the links."""
    entry = advice().get(finding.what) or situations()[finding.what]
    place = finding.place
    known = {
        "JOB": job_id,
        "RANK": finding.rank,
        "NODE": place.node,
        "PID": place.pid,
        "GPU": place.gpu,
        "UUID": place.gpu_uuid,
    }
    values = {name: str(value) for name, value in known.items() if value is not None}
    first = filled(finding.first or entry.first, values)
    if not finding.first and place.node and entry.playbook is not None:
        first = f"{first} on {place.node}"  # As alerts add the node to the cause of a late rank.
    steps = entry.steps(finding.detail, finding.stage)
    return replace(
        finding,
        first=first,
        steps=tuple(Step(filled(step.do, values), step.disturbs) for step in steps),
        proof=filled(entry.proof, values),
        links=tuple(entry.links()),
        tells=entry.found,
    )
