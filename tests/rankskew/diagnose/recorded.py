"""What a Prometheus records of a job, for `rankskew diagnose`."""

from collections.abc import Mapping, Sequence

from rankskew.diagnose.from_prometheus import read_prometheus
from rankskew.diagnose.model import Report
from tests.rankskew.top import fake_prometheus as fake
from tests.rankskew.top.fake_prometheus import FakePrometheus, Series, series

WHO = {"rank": "6", "instance": "n2:9917", "peer_group": "all"}


def losses(job_id: str = "llama", /, **kinds: float) -> list[Series]:
    return [
        series("job_kind:rankskew_gpus_lost:sum", gpus, kind=kind, job_id=job_id)
        for kind, gpus in kinds.items()
    ]


def straggler() -> list[Series]:
    """Return a job whose rank 6 is late loading data, and why."""
    return [
        *fake.job(state="straggler", gpus_lost=2.0),
        *fake.late(),
        *fake.cause(),
        *fake.rank(6, "n2:9917"),
        *losses(persistent=1.6, rotating=0.06, common=0.34),
        series("rank_stage:rankskew_gpus_lost:sum", 1.6, stage="data", **WHO),
        series("rank_stage:rankskew_gpus_lost:sum", 0.05, stage="forward", **WHO),
        series("rankskew_late_line_ratio", 0.87, stage="data", place="f (c.py:1)", **WHO),
    ]


def ask(
    samples: Sequence[Series],
    job_id: str | None = None,
    at: float | None = None,
    over_time: Mapping[str, Sequence[float]] | None = None,
) -> Report:
    """Return the report on what a Prometheus with *samples* has."""
    with FakePrometheus(samples, over_time=over_time or {}).serve() as url:
        return read_prometheus(url, None, job_id, at)


def alert(name: str, state: str = "firing", severity: str = "warning", **labels: str) -> Series:
    return series("ALERTS", alertname=name, alertstate=state, severity=severity, **labels)
