"""Causes: too little CPU for the rank or its node, or the wrong CPUs."""

from functools import partial
from typing import Final

from exporter.causes.case import Case
from exporter.causes.cpu_time import CLEARLY, LEAST_QUEUE, RUN_QUEUE, lacks_cpu
from exporter.causes.model import CPU_QUEUE, GPU, PIPE, RUNNING
from exporter.causes.row import LOADING, ON_GPU, CauseRow, Certainty
from exporter.causes.shares import has_less, has_more, slower, waits
from exporter.causes.tokens import ON_CPU, worker

CPU: Final = "cpu"
# A quota that is used up now and then, in a burst of the loader, ends with it.
LEAST_THROTTLED: Final = 0.05
# A rank that is not bound at all has 0.06 of its CPUs near its GPU even with 16 NUMA nodes.
FAR: Final = 0.05
# With all cores busy, the clock is 0.8 of that with a few; a lower one is more than lost boost.
LOWER_CLOCK: Final = 0.3
# Busy loaders keep some task of a node waiting for a CPU for under a quarter of the time.
PRESSURE: Final = 0.25
# What a hypervisor takes now and then is less than half a CPU.
STOLEN_CPUS: Final = 0.5
# Heat that throttles a package for less than a tenth of the time costs less than a twentieth.
HEAT: Final = 0.1
# Ten thousand pages a second are 40 MB/s; a healthy node has none.
NUMA_MISSES: Final = 10_000.0


def _workers_run_queue(row: CauseRow, case: Case) -> float:
    """Return the share of the excess that would go if its workers got CPUs as its peers' do.

    The figure is the share of the time that the workers want a CPU but have none.
    """
    own, peers = min(case.own(row.figure) or 0.0, 1.0), case.lower(row.figure)
    if peers is None or own - peers < LEAST_QUEUE or own < CLEARLY * peers:
        return 0.0
    room = case.room(row.stages, row.states)
    return case.share(min(room, (1 - (1 - own) / (1 - peers)) * case.excess.step))


ROWS: Final = (
    CauseRow(
        cause=CPU,
        detail="throttled",
        certainty=Certainty.REASON,
        figure="cpu_quota_throttled_ratio",
        states=ON_CPU,
        share=waits(LEAST_THROTTLED),
        healthy=0.0,
        says="its CPU quota is used up in {own} of its periods[, its peers' in {peers}]",
        first_action="raise the CPU limit of its pod or job: `cat /proc/PID/cgroup` on NODE",
    ),
    CauseRow(
        cause=CPU,
        detail="run_queue",
        certainty=Certainty.AMOUNT,
        figure=RUN_QUEUE,
        states=frozenset({CPU_QUEUE}),
        share=lacks_cpu,
        says="its main thread waits for a CPU {own} of the time[, its peers' {peers}]",
        first_action="see what else runs on NODE with `top -H`; `taskset -acp PID` says where",
    ),
    CauseRow(
        cause=CPU,
        detail="workers_run_queue",
        certainty=Certainty.AMOUNT,
        figure="workers_run_queue_ratio",
        stages=LOADING,
        states=frozenset({PIPE, worker(CPU_QUEUE)}),
        share=_workers_run_queue,
        says="its loader's workers wait for a CPU {own} of the time they need one"
        "[, its peers' {peers}]",
        first_action="see what else runs on NODE with `top -H`; `pgrep -P PID` lists the workers",
    ),
    CauseRow(
        cause=CPU,
        detail="numa",
        certainty=Certainty.FACT,
        figure="cpus_near_gpu_ratio",
        stages=ON_GPU,
        states=frozenset({RUNNING, CPU_QUEUE, GPU}),
        share=has_less(0.5, at_most=FAR),
        lowers=True,
        says="{own} of its CPUs are on its GPU's NUMA node, {peers} of its peers'",
        first_action="compare `taskset -acp PID` with `nvidia-smi topo -m` on NODE",
    ),
)

_of_node = partial(CauseRow, cause=CPU, certainty=Certainty.NODE, states=ON_CPU, healthy=0.0)
# Causes on its node. One that explains others comes before them.
OF_NODE: Final = (
    _of_node(
        detail="thermal",
        figure="node_cpu_throttled_ratio",
        share=has_more(HEAT),
        says="its node's CPUs are throttled by heat {own} of the time[, its peers' {peers}]",
        before="CPUs are throttled by heat {own} of the time, before {peers}",
        first_action="`turbostat --quiet --show PkgTmp,Bzy_MHz,PkgWatt --interval 5` on NODE",
    ),
    _of_node(
        detail="frequency",
        figure="node_cpu_clock_hertz",
        share=slower(LOWER_CLOCK),
        lowers=True,
        says="its node's busy CPUs run at {own}, its peers' at {peers}",
        before="busy CPUs run at {own}, before at {peers}",
        first_action="`grep . /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor` on NODE",
    ),
    _of_node(
        detail="steal",
        figure="node_steal_cpus",
        share=has_more(STOLEN_CPUS),
        says="the hypervisor steals {own} CPUs from its node[, {peers} from its peers']",
        before="the hypervisor steals {own} CPUs from the node, before {peers}",
        first_action="ask for dedicated CPUs: `vmstat 1` on NODE shows what is stolen (st)",
    ),
    _of_node(
        detail="node",
        figure="node_cpu_waiting_ratio",
        healthy=None,
        share=has_more(PRESSURE),
        says="tasks on its node wait for a CPU {own} of the time[, its peers' {peers}]",
        before="tasks on the node wait for a CPU {own} of the time, before {peers}",
        first_action="see what runs on NODE that does not belong to the job: `top -H`",
    ),
    _of_node(
        detail="numa_miss",
        figure="node_numa_misses_per_second",
        share=has_more(NUMA_MISSES),
        says="its node's NUMA miss rate is {own}[, its peers' {peers}]",
        before="the node's NUMA miss rate is {own}, before {peers}",
        first_action="`numastat -m` on NODE: which NUMA node is full, and of what?",
    ),
)
