"""How a rank's cgroup is held back is read for both versions, as far as the node shows it."""

from pathlib import Path

import pytest

from exporter.processes.cgroup_cost import CgroupCost, CgroupCosts, Throttling
from tests.exporter.collectors.host import unreadable, write

PID = 4711
STAT_2 = "usage_usec 9\nnr_periods 100\nnr_throttled 25\nthrottled_usec 2500000\nnr_bursts 0\n"
STAT_1 = "nr_periods 100\nnr_throttled 25\nthrottled_time 2500000000\n"
THROTTLED = Throttling(100, 25)
POD = "kubepods.slice/pod1.slice/rank.scope"


class Node:
    """A node with a process PID in the cgroups that *paths* lists."""

    def __init__(self, folder: Path, paths: str = f"0::/{POD}\n") -> None:
        self.tree = folder / "sys" / "fs" / "cgroup"
        self._folder = folder
        write(folder / "proc" / str(PID) / "cgroup", paths)

    def cost(self, own: Path = Path("/missing")) -> CgroupCost:
        costs = CgroupCosts(self._folder / "proc", self._folder / "sys", own)
        return costs.cost(costs.path(PID))

    def quota(self, cgroup: str, limit: str = "800000 100000") -> None:
        write(self.tree / cgroup / "cpu.max", f"{limit}\n")
        write(self.tree / cgroup / "cpu.stat", STAT_2)


def test_node_that_shows_no_cgroups_has_no_cost(tmp_path: Path) -> None:
    """No sysfs, no process, or a file that is nonsense: no reading, and no error."""
    assert Node(tmp_path).cost() == CgroupCost()
    assert Node(tmp_path, "").cost() == CgroupCost()
    assert Node(tmp_path, "nonsense\n::\n0:\n1:cpu\n").cost() == CgroupCost()
    assert CgroupCosts(tmp_path / "missing", tmp_path).path(PID) == ""


def test_cgroup_without_a_quota_is_not_throttled(tmp_path: Path) -> None:
    """That it has never been is no reading: it cannot be."""
    node = Node(tmp_path)
    node.quota(POD, "max 100000")

    assert node.cost().throttling is None


@pytest.mark.parametrize("cgroup", [POD, "kubepods.slice/pod1.slice", "kubepods.slice"])
def test_innermost_quota_counts(tmp_path: Path, cgroup: str) -> None:
    """The limit may be the container's, the pod's, or that of a Slurm job around its steps."""
    node = Node(tmp_path)
    node.quota(POD, "max 100000")
    node.quota(cgroup)

    assert node.cost().throttling == THROTTLED


def test_quota_without_its_counts_is_no_reading(tmp_path: Path) -> None:
    """A kernel that does not tell how often it throttles has no series."""
    node = Node(tmp_path)
    node.quota(POD)
    write(node.tree / POD / "cpu.stat", "usage_usec 9\n")

    assert node.cost().throttling is None


def test_pressure_of_the_cgroup_is_read(tmp_path: Path) -> None:
    """What cannot be read (psi=0, an old kernel) is missing, the others are there."""
    node = Node(tmp_path)
    for resource in ("cpu", "io", "memory"):
        write(
            node.tree / POD / f"{resource}.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
        )
    unreadable(node.tree / POD / "memory.pressure")

    assert node.cost().pressure_seconds == {"cpu": 1.5, "io": 1.5}


def test_throttling_of_version_1_is_read(tmp_path: Path) -> None:
    """Beside version 2, which there has no CPU controller; there is no pressure."""
    node = Node(tmp_path, "5:cpu,cpuacct:/slurm/job_7\n4:memory:/\n0::/init.scope\n")
    write(node.tree / "cpu" / "slurm" / "job_7" / "cpu.cfs_quota_us", "-1\n")
    write(node.tree / "cpu" / "slurm" / "job_7" / "cpu.stat", STAT_1)
    (node.tree / "unified").mkdir()
    assert node.cost() == CgroupCost()
    write(node.tree / "cpu" / "slurm" / "cpu.cfs_quota_us", "800000\n")
    write(node.tree / "cpu" / "slurm" / "cpu.stat", STAT_1)

    assert node.cost().throttling == THROTTLED


def test_cgroup_seen_from_a_container_is_found(tmp_path: Path) -> None:
    """To an exporter with a cgroup namespace of its own, paths are relative to that."""
    node = Node(tmp_path, "0::/../../pod1.slice/rank.scope\n")
    node.quota(POD)
    own = node.tree / "kubepods.slice" / "pod2.slice" / "exporter.scope"
    own.mkdir(parents=True)
    seen = tmp_path / "seen"
    seen.symlink_to(own)  # A second mount of the same folder.

    assert node.cost(seen).throttling == THROTTLED


def test_cgroup_beyond_what_the_container_sees_is_not_guessed(tmp_path: Path) -> None:
    """Without the node's sysfs, the paths of others lead nowhere."""
    node = Node(tmp_path, "0::/../../pod1.slice/rank.scope\n")
    node.quota("pod1.slice/rank.scope")

    assert node.cost(tmp_path / "missing") == CgroupCost()
    assert node.cost(tmp_path) == CgroupCost()
    assert node.cost(node.tree) == CgroupCost()


def test_nesting_is_bounded(tmp_path: Path) -> None:
    """A path of a thousand levels is not walked."""
    node = Node(tmp_path, "0::" + "/a" * 1000 + "\n")
    write(node.tree / "cpu.max", "1 2\n")
    write(node.tree / "cpu.stat", STAT_2)

    assert node.cost() == CgroupCost()
