"""Which ranks were late in a period of time, and at what cost, as a Prometheus knows it."""

from collections import defaultdict
from typing import Final

from exporter.client.prometheus import Prometheus, Sample
from exporter.diagnose.compare.periods import Period
from exporter.diagnose.compare.side import LateRank

RESOLUTION_SECONDS: Final = 15.0
# A rank that was late for less of the period is none to compare.
LEAST_SHARE: Final = 0.1

# How many times each was late, and whether anybody judged; the recorded series know the fallback.
LATE: Final = """\
count_over_time((
  max by (peer_group, rank, instance, kind, stage) (
    {__name__=~"rankskew_late_ratio|rank:rankskew_late:ratio",WHERE}
  )
)[PERIOD:15s])"""
JUDGED: Final = """\
count(count_over_time({__name__=~"rankskew_job_step_seconds|job:rankskew_ranks:sum",WHERE}[PERIOD]))"""
SLOWDOWN: Final = """\
avg_over_time((
  max({__name__=~"rankskew_job_slowdown_ratio|job:rankskew_slowdown:max",WHERE})
)[PERIOD:15s])"""
# The GPUs that wait for each rank: what it made others wait, of the time that was compared.
CAUSED: Final = """\
sum by (rank) (increase(rankskew_wait_caused_seconds_total{WHERE,rank=~"NAMED"}[PERIOD]))
/ on () group_left () avg(increase(rankskew_joined_seconds_total{WHERE}[PERIOD]))"""


def late_ranks(prometheus: Prometheus, where: str, period: Period) -> list[LateRank] | None:
    """Return the late ranks of *period*, None if nobody judged the job; raises Trouble."""
    if not _ask(prometheus, JUDGED, where, period):
        return None
    looks = (period.end - period.begin) / RESOLUTION_SECONDS
    share: dict[int, float] = defaultdict(float)
    most: dict[int, tuple[float, dict[str, str]]] = {}
    for found in _ask(prometheus, LATE, where, period):
        if found["rank"].isdecimal():
            rank = int(found["rank"])
            share[rank] += found.value / looks
            if found.value > most.get(rank, (0.0, {}))[0]:
                most[rank] = found.value, dict(found.labels)
    named = sorted(rank for rank, often in share.items() if often >= LEAST_SHARE)
    cost = _caused(prometheus, where, period, named) if named else {}
    return [
        LateRank(
            rank=rank,
            peer_group=labels.get("peer_group", ""),
            instance=labels.get("instance", ""),
            stage=labels.get("stage", ""),
            kind=labels.get("kind", ""),
            gpus_lost=cost.get(rank),
        )
        for rank in named
        for _, labels in [most[rank]]
    ]


def slowdown(prometheus: Prometheus, where: str, period: Period) -> float | None:
    """Return the mean slowdown of the job by its late ranks; None if nobody judged it."""
    found = _ask(prometheus, SLOWDOWN, where, period)
    return found[0].value if found else None


def _caused(
    prometheus: Prometheus, where: str, period: Period, named: list[int]
) -> dict[int, float]:
    expression = CAUSED.replace("NAMED", "|".join(map(str, named)))
    return {
        int(found["rank"]): found.value for found in _ask(prometheus, expression, where, period)
    }


def _ask(prometheus: Prometheus, expression: str, where: str, period: Period) -> list[Sample]:
    span = f"{(period.end - period.begin) * 1000:.0f}ms"
    return prometheus.query(expression.replace("PERIOD", span).replace("WHERE", where), period.end)
