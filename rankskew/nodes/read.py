"""Reads the past of all nodes and GPUs from a Prometheus: a few queries of one sample an hour."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rankskew.client.prometheus import Prometheus, Sample, Series, selector
from rankskew.nodes.model import JobRate, LateHour, NodePast, incidents
from rankskew.report.times import DAY_SECONDS, HOUR_SECONDS, Span

LOST: Final = "node:rankskew_incident_gpu_seconds:sum1h"
USED: Final = "node:rankskew_used_gpu_seconds:sum1h"
GPU_USED: Final = "gpu:rankskew_used_gpu_seconds:sum1h"
# Drivers are looked at so often, or less often over years.
DRIVERS_STEP_SECONDS: Final = 6 * HOUR_SECONDS
MOST_LOOKS: Final = 5_000
MOST_DAYS: Final = 3_650

# A cluster, and the name of a node or the UUID of a GPU.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FleetPast:
    """The past of *nodes* and *gpus* during *span*; *rates* has jobs by their cluster and id."""

    span: Span
    nodes: Sequence[NodePast]
    gpus: Sequence[NodePast]
    rates: Mapping[Key, JobRate] = field(default_factory=dict)


def read_fleet(prometheus: Prometheus, span: Span, cluster: str | None = None) -> FleetPast:
    """Return what *prometheus* remembers of *span*; raises Trouble."""
    begin, end = max(span[0], span[1] - MOST_DAYS * DAY_SECONDS), span[1]
    step = max(DRIVERS_STEP_SECONDS, (end - begin) // MOST_LOOKS)
    where, back = selector(cluster=cluster), f"[{max(1, round(end - begin))}s]"
    lost = prometheus.history(f"{LOST}{{{where}}}{back}", end)
    by_day = prometheus.query_range(
        f"sum by (cluster, nodename, instance) (sum_over_time({USED}{{{where}}}[1d]))",
        *_days(begin, end),
        DAY_SECONDS,
    )
    jobs = prometheus.query(
        f"count by (cluster, nodename, instance) (count by (cluster, nodename, instance, job_id) "
        f"(last_over_time({USED}{{{where}}}{back})))",
        end,
    )
    drivers = prometheus.query_range(
        "group by (cluster, instance, driver_version) "
        f"(last_over_time(rankskew_nvml_info{{{where}}}[{step:.0f}s]))",
        begin,
        end,
        step,
    )
    gpus = prometheus.query(
        f"sum by (cluster, gpu_uuid) (sum_over_time({GPU_USED}{{{where}}}{back}))", end
    )
    cards = prometheus.query(
        f"group by (cluster, gpu_uuid, serial) (last_over_time(rankskew_gpu_info{{{where}}}[1h]))",
        end,
    )
    nodes = _nodes(lost, by_day, jobs, drivers)
    rates = _rates(prometheus, f"{{{where}}}{back}", end)
    return FleetPast((begin, end), nodes, _gpus(lost, gpus, cards, end), rates)


def _rates(prometheus: Prometheus, past: str, end: float) -> dict[Key, JobRate]:
    """Return the mean price and power of each job, and its team if somebody records that."""
    price = prometheus.query(f"avg_over_time(job:rankskew_gpu_hour_price:value{past})", end)
    power = prometheus.query(f"avg_over_time(job:rankskew_gpu_power_watts:avg{past})", end)
    teams = prometheus.query(f"last_over_time(rankskew:team:override{past})", end)
    found: dict[Key, JobRate] = defaultdict(JobRate)
    for each in price:
        found[_job(each)] = replace(found[_job(each)], dollars=each.value)
    for each in power:
        found[_job(each)] = replace(found[_job(each)], kilowatts=each.value / 1000)
    for each in teams:
        found[_job(each)] = replace(found[_job(each)], team=each["team"])
    return found


def _job(each: Sample) -> Key:
    return each["cluster"], each["job_id"]


def _days(begin: float, end: float) -> Span:
    """Return the ends of the first and the last day between *begin* and *end*."""
    days = max(1, -(-(end - begin) // DAY_SECONDS))
    return end - (days - 1) * DAY_SECONDS, end


def _nodes(
    lost: Iterable[Series],
    by_day: Iterable[Series],
    jobs: Iterable[Sample],
    drivers: Iterable[Series],
) -> list[NodePast]:
    late = _late_hours(lost, _node)
    used: dict[Key, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    # Exporters tell their node's name; a node may have had several addresses.
    names: dict[Key, Key] = {}
    for each in by_day:
        names[each["cluster"], each["instance"]] = _node(each)
        for at, seconds in each.points:
            used[_node(each)][at] += seconds / HOUR_SECONDS
    counts: dict[Key, int] = defaultdict(int)
    for sample in jobs:
        counts[_node(sample)] += round(sample.value)
    versions: dict[Key, dict[str, Span]] = defaultdict(dict)
    for each in drivers:
        key = names.get((each["cluster"], each["instance"]), _node(each))
        first, last = each.points[0][0], each.points[-1][0]
        known = versions[key].get(each["driver_version"], (first, last))
        versions[key][each["driver_version"]] = min(first, known[0]), max(last, known[1])
    return [
        NodePast(
            name=key[1],
            cluster=key[0],
            incidents=incidents(late.get(key, ())),
            used=used.get(key, {}),
            jobs=counts[key],
            drivers=list(versions[key].items()),
        )
        for key in sorted({*late, *used})
    ]


def _gpus(
    lost: Iterable[Series], used: Iterable[Sample], cards: Iterable[Sample], end: float
) -> list[NodePast]:
    serials = {(each["cluster"], each["gpu_uuid"]): each["serial"] for each in cards}
    late = _late_hours(lost, lambda each: (each["cluster"], each["gpu_uuid"]))
    hours = {(each["cluster"], each["gpu_uuid"]): {end: each.value / HOUR_SECONDS} for each in used}
    found = []
    for cluster, uuid in sorted({*late, *hours}):
        those = incidents(late.get((cluster, uuid), ()))
        found.append(
            NodePast(
                name=uuid,
                cluster=cluster,
                incidents=those,
                used=hours.get((cluster, uuid), {}),
                jobs=len({each.job for each in those}),
                serial=serials.get((cluster, uuid), ""),
            )
        )
    return [each for each in found if each.name]


def _node(each: Sample | Series) -> Key:
    return each["cluster"], each["nodename"] or each["instance"]


def _late_hours(
    lost: Iterable[Series], key: Callable[[Series], Key]
) -> Mapping[Key, Sequence[LateHour]]:
    found: dict[Key, list[LateHour]] = defaultdict(list)
    for each in lost:
        found[key(each)] += [
            LateHour(each["job_id"], at, value, each["cause"], each["gpu_uuid"])
            for at, value in each.points
            if value > 0
        ]
    return found
