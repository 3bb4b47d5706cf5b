"""CPUs, memory and pressure of a node, and which of its many devices is shown."""

import re
from pathlib import Path

import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.node.busiest import Busiest
from exporter.collectors.node.cpu import MODES, NodeCpuCollector
from exporter.collectors.node.cpu_clock import MOST_CPUS, NodeCpuClockCollector
from exporter.collectors.node.files import Mounts
from exporter.collectors.node.memory import NodeMemoryCollector
from exporter.collectors.node.pressure import NodePressureCollector
from tests.exporter.collectors.expose import expose, shown
from tests.exporter.collectors.host import HOST, unreadable, write


def seconds(collector: NodeCpuCollector) -> dict[str, float]:
    """Return the seconds of each NUMA node and mode, as "0 user"."""
    found = (re.search(r'mode="(\w+)",numa_node="(\d)"} (\S+)', line) for line in shown(collector))
    return {f"{each[2]} {each[1]}": float(each[3]) for each in found if each}


def ticks(user: int, idle: int, cpu: int = 0) -> str:
    return f"cpu{cpu} {user} 0 0 {idle} 0 0 0 0 0 0\n"


def test_machine_without_numa_is_node_zero(tmp_path: Path) -> None:
    """If the kernel shows no NUMA nodes, all CPUs belong to one, and none is missing."""
    found = seconds(NodeCpuCollector(Mounts(HOST.procfs, tmp_path)))

    assert (len(found), found["0 idle"]) == (len(MODES), 800.0)


def test_node_without_stat_fails_visibly(tmp_path: Path) -> None:
    """A wrong --path.procfs is a failure that can be alerted on, not a node without CPUs."""
    page = expose(NodeCpuCollector(Mounts(tmp_path, tmp_path)))

    assert 'rankskew_collector_success{collector="node_cpu"} 0.0' in page


def test_modes_are_summed_over_the_cpus_of_each_numa_node() -> None:
    """nice is in user, softirq in irq, and guest time, which is in user already, counts once."""
    found = seconds(NodeCpuCollector(HOST))
    first = dict(zip(MODES, (58.0, 18.0, 400.0, 5.0, 1.5, 3.0), strict=True))

    assert {mode: found[f"0 {mode}"] for mode in MODES} == first
    assert (found["1 user"], len(found)) == (52.0, 2 * len(MODES))


def test_small_step_back_is_not_taken_for_a_counter_reset(host: Mounts) -> None:
    """The kernel's idle time may dip; a rate must not explode for it. A real reset passes."""
    collector = NodeCpuCollector(host)
    idle = []
    for reading in (10_000, 9_950, 10_100, 300):
        write(host.procfs / "stat", ticks(user=1, idle=reading))
        idle.append(seconds(collector)["0 idle"])

    assert idle == [100.0, 100.0, 101.0, 3.0]


def test_cpu_that_goes_offline_keeps_its_time_in_the_sum(host: Mounts) -> None:
    """A sum that fell by one CPU would look like a reset of all of them."""
    collector = NodeCpuCollector(host)
    write(host.procfs / "stat", ticks(user=100, idle=700, cpu=2) + ticks(user=200, idle=30, cpu=3))
    expose(collector)
    write(host.procfs / "stat", ticks(user=150, idle=700, cpu=2))
    write(host.sysfs / "devices/system/node/node1/cpulist", "2\n")

    assert seconds(collector)["1 user"] == 3.5


CLOCK = "rankskew_node_cpu_clock_hertz"
# Of the hottest package, in milliseconds there; the other package was never hot.
THROTTLED = "rankskew_node_cpu_throttled_seconds_total 2.5"


def clock_of(host: Mounts, cpu: int) -> Path:
    return host.sysfs / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"


def show(host: Mounts, *busy: int, idle: int = 0) -> None:
    """Let each CPU have been busy for so many of 1,000 ticks, and *idle* more."""
    lines = [
        f"cpu{cpu} {ticks} 0 0 {1000 - ticks + idle} 0 0 0 0 0 0\n"
        for cpu, ticks in enumerate(busy)
    ]
    write(host.procfs / "stat", "".join(["cpu  1 1 1 1 1 1 1 1 1 1\n", *lines, "intr 1\n"]))


def test_node_that_hides_its_clocks_turns_collector_off(tmp_path: Path) -> None:
    """A virtual machine has neither cpufreq nor throttling."""
    write(tmp_path / "stat", "cpu0 1 1 1 1 1 1 1 1\n")

    with pytest.raises(NotAvailable, match="clock"):
        NodeCpuClockCollector(Mounts(tmp_path, tmp_path))


@pytest.mark.parametrize(
    ("busy", "clocks"),
    [
        # An idle CPU has a low clock, and nobody waits for it.
        ((10, 500, 199, 900), [f"{CLOCK} 2.8e+09"]),
        ((10, 10), []),
    ],
)
def test_clock_is_the_mean_of_the_cpus_that_work(
    host: Mounts, busy: tuple[int, ...], clocks: list[str]
) -> None:
    show(host, *busy)

    assert shown(NodeCpuClockCollector(host)) == [*clocks, THROTTLED]


def test_what_a_cpu_did_before_the_last_look_does_not_count(host: Mounts) -> None:
    """Each look is about the time since the one before."""
    collector = NodeCpuClockCollector(host)
    found = []
    for busy in ((900, 100), (900, 1100), (900, 1100)):  # At last none has done anything.
        show(host, *busy, idle=1000 * (busy[1] > 1000))
        found += shown(collector, CLOCK)

    assert found == [f"{CLOCK} 2e+09", f"{CLOCK} 2.4e+09"]


def test_only_so_many_clocks_are_read(host: Mounts) -> None:
    """Of a node with hundreds of CPUs, the busiest."""
    for number in range(MOST_CPUS + 1):
        write(clock_of(host, number), "1000000" if number else "9000000")
    show(host, 500, *[600] * MOST_CPUS)

    assert shown(NodeCpuClockCollector(host), CLOCK) == [f"{CLOCK} 1e+09"]


def test_cpu_without_a_clock_hides_no_other(host: Mounts) -> None:
    """A CPU may go offline between the look at its time and at its clock."""
    show(host, 900, 0, 0, 900)
    clock_of(host, 3).unlink()

    assert shown(NodeCpuClockCollector(host), CLOCK) == [f"{CLOCK} 2e+09"]


MEMORY = [
    "rankskew_node_memory_total_bytes 4.096e+09",
    "rankskew_node_memory_available_bytes 2.56e+09",
    'rankskew_node_numa_memory_free_bytes{numa_node="0"} 2.048e+08',
    'rankskew_node_numa_memory_free_bytes{numa_node="1"} 1.024e+08',
    "rankskew_node_numa_misses_total 128.0",
    "rankskew_node_oom_kills_total 3.0",
]


def test_memory_of_node_and_numa_nodes_is_exposed_in_bytes(host: Mounts, tmp_path: Path) -> None:
    """A NUMA node's page cache is not free. Misses of all are one number.

    If the kernel shows no NUMA nodes, there are no series for them.
    """
    assert shown(NodeMemoryCollector(host)) == MEMORY
    without = NodeMemoryCollector(host._replace(sysfs=tmp_path))
    assert shown(without) == [line for line in MEMORY if "numa" not in line]


def test_numa_node_without_memory_costs_no_series(host: Mounts) -> None:
    """A node with only CPUs, or with an unreadable file, does not hide its neighbours."""
    nodes = host.sysfs / "devices/system/node"
    write(nodes / "node2/meminfo", "Node 2 MemTotal:       0 kB\nNode 2 MemFree:       0 kB\n")
    write(nodes / "node3/cpulist", "\n")

    assert shown(NodeMemoryCollector(host)) == MEMORY


def test_kernel_that_does_not_count_them_has_no_series(host: Mounts) -> None:
    """Before Linux 4.13 kills are not counted; 0 would mean that there was none."""
    write(host.procfs / "vmstat", "nr_free_pages 1\npgoom_kill 5\n")
    for number in (0, 1):
        (host.sysfs / f"devices/system/node/node{number}/numastat").unlink()

    assert shown(NodeMemoryCollector(host)) == MEMORY[:-2]


PRESSURE = [
    'rankskew_node_pressure_waiting_seconds_total{resource="cpu"} 12.5',
    'rankskew_node_pressure_waiting_seconds_total{resource="memory"} 0.75',
    'rankskew_node_pressure_waiting_seconds_total{resource="io"} 4.0',
    'rankskew_node_pressure_stalled_seconds_total{resource="memory"} 0.25',
    'rankskew_node_pressure_stalled_seconds_total{resource="io"} 3.5',
]


@pytest.mark.parametrize("built", [False, True], ids=["not built", "psi=0"])
def test_kernel_without_pressure_turns_collector_off(built: bool, host: Mounts) -> None:
    """Without the folder, or with files that cannot be read, the collector does not start."""
    for resource in ("cpu", "memory", "io"):
        file = host.procfs / "pressure" / resource
        unreadable(file) if built else file.unlink()

    with pytest.raises(NotAvailable, match="psi=1"):
        NodePressureCollector(host)


def test_totals_are_exposed_in_seconds_and_one_that_cannot_be_read_hides_no_other(
    host: Mounts,
) -> None:
    """The kernel's microseconds arrive as seconds; nothing waits for all CPUs of a node."""
    assert shown(NodePressureCollector(HOST)) == PRESSURE
    unreadable(host.procfs / "pressure/io")

    assert shown(NodePressureCollector(host)) == [
        line for line in PRESSURE if "io" not in line[-14:]
    ]


@pytest.mark.parametrize(
    ("looks", "shown"),
    [
        # At first the one with most in total; one that was never used is not shown.
        ([{"a": 5.0, "b": 50.0, "c": 0.0}], ["b"]),
        ([{"a": 0.0}], [None]),
        ([{}], [None]),
        # One that becomes slow is shown at once, whatever was in the months before.
        ([{"old": n, "new": 1.0} for n in (9000.0, 9000.1)] + [{"old": 9000.2, "new": 6.0}], "new"),
        # Each change of what is shown begins new series.
        ([{"a": 1.0 + 1.1 * n, "b": 2.0 + n} for n in range(9)], ["b"] * 9),
        # One that is gone leaves its place, and comes back as if it were new.
        ([{"a": 1.0, "b": 9.0}, {"a": 2.0}, {"a": 2.0, "b": 9.0}], ["b", "a", "a"]),
        # A counter that begins again is not work, such as that of a mount that is made anew.
        ([{"a": 10.0, "b": 90.0}, {"a": 20.0, "b": 90.0}, {"a": 20.0, "b": 1.0}], "a"),
    ],
)
def test_busiest_of_late_is_shown(
    looks: list[dict[str, float]], shown: list[str | None] | str
) -> None:
    busiest = Busiest()
    found = [busiest.of(look) for look in looks]

    assert (found[-1] if isinstance(shown, str) else found) == shown
