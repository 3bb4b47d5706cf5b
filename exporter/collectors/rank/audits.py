"""Audits: what the last `rank-probe audit` of each job on this node found."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.ranks.audits import Audits


class AuditsCollector:
    """Expose the status of each check of the held audits; call from the event loop."""

    name = "audits"
    interval_seconds = 0.0

    def __init__(self, audits: Audits) -> None:
        self._audits = audits

    def collect(self) -> Iterator[Metric]:
        checks = GaugeMetricFamily(
            "rankskew_audit_check",
            "1 for the status of each check of the job's last audit: ok, warn, fail or "
            "not_checked (rank-probe audit --push).",
            labels=["job_id", "check", "status"],
        )
        age = GaugeMetricFamily(
            "rankskew_audit_age_seconds",
            "Time since the job's last audit was pushed.",
            labels=["job_id"],
        )
        for audit in self._audits.latest():
            for check, status in sorted(audit.statuses.items()):
                checks.add_metric([audit.job_id, check, status], 1)
            age.add_metric([audit.job_id], self._audits.age_seconds(audit))
        yield checks
        yield age
