"""What ranks cost their host: CPU, faults and I/O with their workers; limits of their cgroup."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY
from exporter.collectors.table import NANO, Row, families
from exporter.processes.host_watch import HostCost, HostWatch, to_follow
from exporter.processes.rank_cost import TICKS_PER_SECOND
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.store import RankStore

ROWS: Final[tuple[Row[HostCost], ...]] = (
    Row(
        "rankskew_rank_cpu_seconds_total",
        "CPU time of the rank's process (main) and of all that it started (workers), living or "
        "ended, in seconds in user and kernel mode (/proc/<pid>/stat, read every 5 s).",
        lambda cost: {"main": cost.used.cpu_ticks, "workers": cost.used.workers_cpu_ticks},
        ("process",),
        over=TICKS_PER_SECOND,
    ),
    Row(
        "rankskew_rank_run_queue_seconds_total",
        "Time for which the main thread of the rank's process (main) and those of its workers "
        "(workers) were ready to run but had no CPU, in seconds (/proc/<pid>/schedstat, read "
        "every 5 s).",
        lambda cost: {
            "main": cost.used.run_queue_nanoseconds,
            "workers": cost.used.workers_run_queue_nanoseconds,
        },
        ("process",),
        over=NANO,
    ),
    Row(
        "rankskew_rank_read_bytes_total",
        "Bytes that the rank's process and its workers caused to be read from storage; what was "
        "in the page cache does not count (/proc/<pid>/io, read every 5 s; needs "
        "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for other users' processes).",
        lambda cost: cost.used.read_bytes,
    ),
    Row(
        "rankskew_rank_workers",
        "Living processes that the rank's process started, directly or through others, such as "
        "the workers of its DataLoader (/proc, read every 5 s).",
        lambda cost: cost.used.workers,
    ),
    Row(
        "rankskew_rank_cgroup_throttled_periods_total",
        "Periods in which the CPU quota of the rank's cgroup was used up (cpu.stat, read every "
        "5 s).",
        lambda cost: None if (quota := cost.cgroup.throttling) is None else quota.throttled_periods,
    ),
    Row(
        "rankskew_rank_cgroup_pressure_seconds_total",
        "Time in which at least one task of the rank's cgroup waited for the resource, in seconds "
        "(some in cpu.pressure, io.pressure and memory.pressure, cgroup v2, read every 5 s).",
        lambda cost: cost.cgroup.pressure_seconds,
        ("resource",),
    ),
)
LEFT_OUT: Final[Row[int]] = Row(
    "rankskew_rank_processes_left_out",
    "Workers of this node's ranks that were not read at the last look, because together the "
    "ranks have more than 1,024 processes; each rank has an equal share of those.",
    lambda processes: processes,
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
        costs = [(who, cost) for who, cost in found.items() if who in here]
        yield from families(ROWS, IDENTITY, costs)
        yield from families([LEFT_OUT], [], [] if look is None else [([], look.left_out)])
