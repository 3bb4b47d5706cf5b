"""Prometheus sees what the last audit of a job found."""

from exporter.collectors.rank.audits import AuditsCollector
from exporter.ranks.audits import Audits
from tests.exporter.clock import Clock
from tests.exporter.collectors.expose import expose, series


def test_each_check_is_one_series() -> None:
    """Its status is a label, so that one query finds all that fail."""
    clock = Clock()
    audits = Audits(clock)
    audits.put("llama", {"numa": "fail", "mtu": "not_checked"})
    clock.seconds += 7.0

    assert series(expose(AuditsCollector(audits))) == [
        'rankskew_audit_check{check="mtu",job_id="llama",status="not_checked"} 1.0',
        'rankskew_audit_check{check="numa",job_id="llama",status="fail"} 1.0',
        'rankskew_audit_age_seconds{job_id="llama"} 7.0',
    ]
