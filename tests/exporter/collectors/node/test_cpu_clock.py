"""The clock of the CPUs that work is exposed, and the time for which heat throttled them."""

from pathlib import Path

import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.node.cpu_clock import MOST_CPUS, NodeCpuClockCollector
from exporter.collectors.node.files import Mounts
from tests.exporter.collectors.expose import shown
from tests.exporter.collectors.host import copy_of_host, write

CLOCK = "rankskew_node_cpu_clock_hertz"
# Of the hottest package, in milliseconds there; the other package was never hot.
THROTTLED = "rankskew_node_cpu_throttled_seconds_total 2.5"


@pytest.fixture
def host(tmp_path: Path) -> Mounts:
    """A node that a test may change: four CPUs with 2.0, 2.4, 2.8 and 3.2 GHz."""
    return copy_of_host(tmp_path)


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
