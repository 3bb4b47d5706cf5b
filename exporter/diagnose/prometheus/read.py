"""The report on a job at one moment, from a Prometheus."""

from dataclasses import replace
from typing import Final

from exporter.client.access import ANYONE, Access
from exporter.client.prometheus import Prometheus
from exporter.diagnose.advise import advised
from exporter.diagnose.known import Known
from exporter.diagnose.late import late_findings
from exporter.diagnose.loss import loss
from exporter.diagnose.model import CannotTell, Finding, Report, ordered
from exporter.diagnose.prometheus.alerts import alert_findings, told_apart
from exporter.diagnose.prometheus.changed import whole_job
from exporter.diagnose.prometheus.moment import Moment, look
from exporter.diagnose.situations import situation_findings, unjudged
from exporter.diagnose.words import clock
from exporter.top.from_prometheus import NO_EXPORTER, NO_RULES, ask
from exporter.top.model import MOST_JOBS, NO_RANK, Fleet, Job

# Of an earlier time these only mean that there is no data.
NOTHING_THERE: Final = (NO_EXPORTER, NO_RULES, NO_RANK)


def read(
    url: str,
    cluster: str | None,
    job_id: str | None,
    at: float | None,
    access: Access = ANYONE,
) -> Report:
    """Return the report at the Unix time *at*, or now; raises Trouble and CannotTell."""
    prometheus = Prometheus(url, at, access=access)
    return report(look(prometheus, one_job(ask(prometheus, cluster, job_id), at)))


def one_job(fleet: Fleet, at: float | None = None) -> Job:
    """Return the only job of *fleet*; raises CannotTell, and says why there is not one."""
    if fleet.troubles and at is not None and fleet.troubles[0] in NOTHING_THERE:
        when = clock(at, "%Y-%m-%d %H:%M:%S")
        raise CannotTell(f"{fleet.source} has recorded nothing of any job at {when} UTC.")
    if fleet.troubles:
        raise CannotTell(fleet.troubles[0])
    if fleet.focus is None:
        names = ", ".join(job.job_id for job in fleet.jobs[:MOST_JOBS])
        more = len(fleet.jobs) - MOST_JOBS
        rest = f" and {more} more" if more > 0 else ""
        raise CannotTell(f"There are {len(fleet.jobs)} jobs; name one with --job: {names}{rest}.")
    return fleet.focus


def report(moment: Moment) -> Report:
    """Return the report on the job of *moment*; raises Trouble."""
    job, known = moment.job, moment.known()
    findings, more = all_findings(moment, known)
    slower, events = whole_job(moment)
    if slower is not None:
        findings.append(slower)
    return Report(
        source=moment.prometheus.url,
        job_id=job.job_id,
        cluster=job.cluster,
        state=job.state,
        sentence=job.sentence,
        at_seconds=moment.prometheus.now,
        world_size=job.world_size,
        loss=loss(job.lost_by_kind, moment.by_rank_and_stage()) if job.lost_by_kind else None,
        slowdown=job.slowdown,
        gpu_hour_price=moment.value("job:rankskew_gpu_hour_price:value"),
        findings=tuple(advised(each, job.job_id) for each in findings),
        more=tuple(more),
        events=tuple(sorted(events, key=lambda event: event.since_seconds)),
        unjudged=tuple(unjudged(known)),
    )


def all_findings(moment: Moment, known: Known) -> tuple[list[Finding], list[str]]:
    """Return all that is wrong at *moment*, the costliest first, and who else is late."""
    late, more = late_findings(known)
    found = ordered([*situation_findings(known), *late])
    alone, facts = told_apart(alert_findings(moment), found)
    told = [
        replace(each, facts=(*each.facts, *facts.get(place, ())))
        for place, each in enumerate(found)
    ]
    return [*told, *alone], more
