"""CPU time is exposed by mode and NUMA node, and never seems to run backwards by a little."""

import re
from pathlib import Path

from exporter.collectors.node.cpu import MODES, NodeCpuCollector
from exporter.collectors.node.files import Mounts
from tests.exporter.collectors.expose import expose, shown
from tests.exporter.collectors.host import HOST, copy_of_host, write


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


def test_small_step_back_is_not_taken_for_a_counter_reset(tmp_path: Path) -> None:
    """The kernel's idle time may dip; a rate must not explode for it. A real reset passes."""
    host = copy_of_host(tmp_path)
    collector = NodeCpuCollector(host)
    idle = []
    for reading in (10_000, 9_950, 10_100, 300):
        write(host.procfs / "stat", ticks(user=1, idle=reading))
        idle.append(seconds(collector)["0 idle"])

    assert idle == [100.0, 100.0, 101.0, 3.0]


def test_cpu_that_goes_offline_keeps_its_time_in_the_sum(tmp_path: Path) -> None:
    """A sum that fell by one CPU would look like a reset of all of them."""
    host = copy_of_host(tmp_path)
    collector = NodeCpuCollector(host)
    write(host.procfs / "stat", ticks(user=100, idle=700, cpu=2) + ticks(user=200, idle=30, cpu=3))
    expose(collector)
    write(host.procfs / "stat", ticks(user=150, idle=700, cpu=2))
    write(host.sysfs / "devices/system/node/node1/cpulist", "2\n")

    assert seconds(collector)["1 user"] == 3.5
