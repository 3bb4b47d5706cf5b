"""The clock of the CPUs that work is exposed, and the time for which heat throttled them."""

from pathlib import Path

import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.node.cpu_clock import MOST_CPUS, NodeCpuClockCollector
from exporter.collectors.node.files import Mounts
from tests.exporter.collectors.expose import expose, series
from tests.exporter.collectors.host import copy_of_host, write

CLOCK = "rankskew_node_cpu_clock_hertz"
THROTTLED = "rankskew_node_cpu_throttled_seconds_total"


@pytest.fixture
def host(tmp_path: Path) -> Mounts:
    """A node that a test may change: four CPUs with 2.0, 2.4, 2.8 and 3.2 GHz."""
    return copy_of_host(tmp_path)


def show(host: Mounts, **busy: int) -> None:
    """Let each CPU have been busy for so many of 1,000 ticks."""
    lines = [f"{cpu} {ticks} 0 0 {1000 - ticks} 0 0 0 0 0 0\n" for cpu, ticks in busy.items()]
    write(host.procfs / "stat", "".join(["cpu  1 1 1 1 1 1 1 1 1 1\n", *lines, "intr 1\n"]))


def clocks(collector: NodeCpuClockCollector) -> list[str]:
    """Return the lines of the clock."""
    return [line for line in series(expose(collector)) if line.startswith(CLOCK)]


def test_node_that_hides_its_clocks_turns_collector_off(tmp_path: Path) -> None:
    """A virtual machine has neither cpufreq nor throttling."""
    write(tmp_path / "stat", "cpu0 1 1 1 1 1 1 1 1\n")

    with pytest.raises(NotAvailable, match="clock"):
        NodeCpuClockCollector(Mounts(tmp_path, tmp_path))


def test_clock_is_the_mean_of_the_cpus_that_work(host: Mounts) -> None:
    """An idle CPU has a low clock, and nobody waits for it."""
    show(host, cpu0=10, cpu1=500, cpu2=199, cpu3=900)

    assert clocks(NodeCpuClockCollector(host)) == [f"{CLOCK} 2.8e+09"]


def test_what_a_cpu_did_before_the_last_look_does_not_count(host: Mounts) -> None:
    """Each look is about the time since the one before."""
    show(host, cpu0=900, cpu1=100, cpu2=0, cpu3=0)
    collector = NodeCpuClockCollector(host)
    first = clocks(collector)
    lines = (host.procfs / "stat").read_text()
    later = lines.replace("cpu0 900 0 0 100", "cpu0 900 0 0 1100").replace(
        "cpu1 100 0 0 900", "cpu1 1100 0 0 900"
    )
    write(host.procfs / "stat", later)

    assert (first, clocks(collector)) == ([f"{CLOCK} 2e+09"], [f"{CLOCK} 2.4e+09"])


def test_idle_node_has_no_clock(host: Mounts) -> None:
    """No reading, no series; the collector has not failed."""
    show(host, cpu0=10, cpu1=10)
    page = expose(NodeCpuClockCollector(host))

    assert f"\n{CLOCK} " not in page
    assert 'rankskew_collector_success{collector="node_cpu_clock"} 1.0' in page


def test_only_so_many_clocks_are_read(host: Mounts) -> None:
    """Of a node with hundreds of CPUs, the busiest."""
    for number in range(MOST_CPUS + 1):
        clock = host.sysfs / f"devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq"
        write(clock, "1000000" if number else "9000000")
    show(host, cpu0=500, **{f"cpu{number}": 600 for number in range(1, MOST_CPUS + 1)})

    assert clocks(NodeCpuClockCollector(host)) == [f"{CLOCK} 1e+09"]


def test_throttled_time_is_that_of_the_hottest_package(host: Mounts) -> None:
    """All CPUs of a package say the same, in milliseconds; the other package was never hot."""
    show(host, cpu0=10)

    assert series(expose(NodeCpuClockCollector(host))) == [f"{THROTTLED} 2.5"]


def test_cpu_without_a_clock_hides_no_other(host: Mounts) -> None:
    """A CPU may go offline between the look at its time and at its clock."""
    show(host, cpu0=900, cpu3=900)
    (host.sysfs / "devices/system/cpu/cpu3/cpufreq/scaling_cur_freq").unlink()

    assert clocks(NodeCpuClockCollector(host)) == [f"{CLOCK} 2e+09"]
