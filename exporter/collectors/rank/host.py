"""What ranks cost their host: CPU, faults and I/O with their workers; limits of their cgroup."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY
from exporter.processes.cgroup_cost import Throttling
from exporter.processes.host_watch import HostCost, HostWatch, Who, to_follow
from exporter.processes.rank_cost import NANOSECONDS, TICKS_PER_SECOND, Cost
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.store import RankStore

Costs = Mapping[Who, HostCost]
Read = Callable[[Cost], float | None]

# The value of the label `process` and what it is, for what is told apart.
CPU_SECONDS: Final[tuple[tuple[str, Read], ...]] = (
    ("main", lambda used: used.cpu_ticks / TICKS_PER_SECOND),
    ("workers", lambda used: used.workers_cpu_ticks / TICKS_PER_SECOND),
)
RUN_QUEUE_SECONDS: Final[tuple[tuple[str, Read], ...]] = (
    ("main", lambda used: _seconds(used.run_queue_nanoseconds)),
    ("workers", lambda used: _seconds(used.workers_run_queue_nanoseconds)),
)
COUNTERS: Final[tuple[tuple[str, str, Read], ...]] = (
    (
        "rankskew_rank_involuntary_switches_total",
        "Times that the main threads of the rank's process and its workers lost their CPU to "
        "another task (/proc/<pid>/status, read every 5 s).",
        lambda used: used.involuntary_switches,
    ),
    (
        "rankskew_rank_major_faults_total",
        "Page faults of the rank's process and its workers for which a page had to be read from "
        "storage (/proc/<pid>/stat, read every 5 s).",
        lambda used: used.major_faults,
    ),
    (
        "rankskew_rank_read_bytes_total",
        "Bytes that the rank's process and its workers caused to be read from storage; what was "
        "in the page cache does not count (/proc/<pid>/io, read every 5 s; needs "
        "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for other users' processes).",
        lambda used: used.read_bytes,
    ),
    (
        "rankskew_rank_written_bytes_total",
        "Bytes that the rank's process and its workers caused to be written to storage "
        "(/proc/<pid>/io, read every 5 s; needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for other "
        "users' processes).",
        lambda used: used.written_bytes,
    ),
)
GAUGES: Final[tuple[tuple[str, str, Read], ...]] = (
    (
        "rankskew_rank_workers",
        "Living processes that the rank's process started, directly or through others, such as "
        "the workers of its DataLoader (/proc, read every 5 s).",
        lambda used: used.workers,
    ),
    (
        "rankskew_rank_saturated_workers",
        "Workers that used at least 0.9 of a CPU for the last five seconds, so that they hardly "
        "waited for anything else (/proc/<pid>/stat, read every 5 s).",
        lambda used: used.saturated_workers,
    ),
)
THROTTLING: Final[tuple[tuple[str, str, Callable[[Throttling], float]], ...]] = (
    (
        "rankskew_rank_cgroup_periods_total",
        "Periods of the CPU quota of the rank's cgroup in which tasks ran; absent if neither it "
        "nor one around it has a quota (cpu.stat, read every 5 s).",
        lambda found: found.periods,
    ),
    (
        "rankskew_rank_cgroup_throttled_periods_total",
        "Periods in which the CPU quota of the rank's cgroup was used up (cpu.stat, read every "
        "5 s).",
        lambda found: found.throttled_periods,
    ),
    (
        "rankskew_rank_cgroup_throttled_seconds_total",
        "Time for which tasks of the rank's cgroup were kept from running because its CPU quota "
        "was used up, in seconds summed over CPUs (cpu.stat, read every 5 s).",
        lambda found: found.seconds,
    ),
)


class RankHostCollector:
    """Expose what *watch* last found; call from the event loop, as RankJoin requires.

    It names the ranks to *watch*. The evidence does so too, but not every simulated node has it.
    """

    name = "rank_host"
    interval_seconds = 0.0

    def __init__(self, join: RankJoin, store: RankStore, watch: HostWatch) -> None:
        self._join = join
        self._store = store
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        followed = to_follow(self._join.ranks(), self._store.ranks())
        self._watch.follow(followed)
        look = self._watch.latest()
        here = {each.who for each in followed}  # A rank that has ended since has no series.
        found = {} if look is None else look.costs
        costs = {who: cost for who, cost in found.items() if who in here}
        yield from _by_process(costs)
        for name, meaning, read in COUNTERS:
            yield _filled(CounterMetricFamily(name, meaning, labels=IDENTITY), read, costs)
        for name, meaning, read in GAUGES:
            yield _filled(GaugeMetricFamily(name, meaning, labels=IDENTITY), read, costs)
        yield from _throttling(costs)
        yield _pressure(costs)
        yield _left_out(None if look is None else look.left_out)


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NANOSECONDS


def _by_process(costs: Costs) -> Iterator[Metric]:
    cpu = CounterMetricFamily(
        "rankskew_rank_cpu_seconds_total",
        "CPU time of the rank's process (main) and of all that it started (workers), living or "
        "ended, in seconds in user and kernel mode (/proc/<pid>/stat, read every 5 s).",
        labels=[*IDENTITY, "process"],
    )
    run_queue = CounterMetricFamily(
        "rankskew_rank_run_queue_seconds_total",
        "Time for which the main thread of the rank's process (main) and those of its workers "
        "(workers) were ready to run but had no CPU, in seconds (/proc/<pid>/schedstat, read "
        "every 5 s).",
        labels=[*IDENTITY, "process"],
    )
    for family, readings in ((cpu, CPU_SECONDS), (run_queue, RUN_QUEUE_SECONDS)):
        for who, cost in costs.items():
            for process, read in readings:
                value = read(cost.used)
                if value is not None:
                    family.add_metric([*who, process], value)
    yield from (cpu, run_queue)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, read: Read, costs: Costs) -> Metric:
    for who, cost in costs.items():
        value = read(cost.used)
        if value is not None:
            family.add_metric(who, value)
    return family


def _throttling(costs: Costs) -> Iterator[Metric]:
    for name, meaning, read in THROTTLING:
        family = CounterMetricFamily(name, meaning, labels=IDENTITY)
        for who, cost in costs.items():
            if cost.cgroup.throttling is not None:
                family.add_metric(who, read(cost.cgroup.throttling))
        yield family


def _pressure(costs: Costs) -> Metric:
    family = CounterMetricFamily(
        "rankskew_rank_cgroup_pressure_seconds_total",
        "Time in which at least one task of the rank's cgroup waited for the resource, in seconds "
        "(some in cpu.pressure, io.pressure and memory.pressure, cgroup v2, read every 5 s).",
        labels=[*IDENTITY, "resource"],
    )
    for who, cost in costs.items():
        for resource, seconds in cost.cgroup.pressure_seconds.items():
            family.add_metric([*who, resource], seconds)
    return family


def _left_out(processes: int | None) -> Metric:
    family = GaugeMetricFamily(
        "rankskew_rank_processes_left_out",
        "Workers of this node's ranks that were not read at the last look, because together the "
        "ranks have more than 1,024 processes; each rank has an equal share of those.",
    )
    if processes is not None:
        family.add_metric([], processes)
    return family
