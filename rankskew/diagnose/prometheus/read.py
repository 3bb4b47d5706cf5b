"""The report on a job at one moment, from a Prometheus."""

from typing import Final

from rankskew.client.access import ANYONE, Access
from rankskew.client.prometheus import Prometheus
from rankskew.diagnose.model import CannotTell, Report
from rankskew.diagnose.prometheus.alerts import with_alerts
from rankskew.diagnose.prometheus.changed import whole_job
from rankskew.diagnose.prometheus.moment import look
from rankskew.diagnose.report import all_findings, report
from rankskew.diagnose.words import clock
from rankskew.top.from_prometheus import NO_EXPORTER, NO_RULES, ask
from rankskew.top.model import NO_RANK, FleetStatus, JobStatus, several_jobs

# Of an earlier time these only mean that there is no data.
NOTHING_THERE: Final = (NO_EXPORTER, NO_RULES, NO_RANK)


def read(
    url: str, cluster: str | None, job_id: str | None, at: float | None, access: Access = ANYONE
) -> Report:
    """Return the report at the Unix time *at*, or now; raises Trouble and CannotTell."""
    prometheus = Prometheus(url, at, access=access)
    moment = look(prometheus, _one_job(ask(prometheus, cluster, job_id), at))
    facts = moment.facts()
    findings, more = all_findings(facts)
    findings = with_alerts(moment, findings)
    slower, events = whole_job(moment)
    findings += slower
    return report(facts, prometheus.url, prometheus.now, findings, more, events)


def _one_job(fleet: FleetStatus, at: float | None) -> JobStatus:
    """Return the only job of *fleet*; raises CannotTell, and says why there is not one."""
    if fleet.troubles and at is not None and fleet.troubles[0] in NOTHING_THERE:
        when = clock(at, "%Y-%m-%d %H:%M:%S")
        raise CannotTell(f"{fleet.source} has recorded nothing of any job at {when} UTC.")
    if fleet.troubles:
        raise CannotTell(fleet.troubles[0])
    if fleet.focus is None:
        raise CannotTell(several_jobs([job.job_id for job in fleet.jobs]))
    return fleet.focus
