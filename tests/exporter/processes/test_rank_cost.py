"""A rank's cost has its workers, living and ended, once each, never falls, and names its cgroup."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.processes.cgroup_cost import CgroupCost, CgroupCosts, Throttling
from exporter.processes.children import Children, family
from exporter.processes.rank_cost import TICKS_PER_SECOND, Cost, RankCost
from tests.exporter.collectors.host import unreadable, write
from tests.exporter.fake_proc import FakeProc

RANK, WORKER, OTHER_WORKER = 10, 11, 12
MANY = 100


Uses = dict[int, dict[str, Any] | None]


class Rank:
    """Process RANK of a fake node, looked at every fifteen seconds."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeProc(folder / "proc")
        self._now = 0.0
        self.seconds = 15.0
        self._cost = RankCost(self.fake.path, RANK, 1000, lambda: self._now)
        self.use({RANK: {"read": 0, "run_queue": 0}})

    def use(self, processes: Uses) -> None:
        """Let processes have used this; None has ended. A worker's parent is the rank."""
        for pid, used in processes.items():
            if used is None:
                self.fake.end(pid)
            else:
                usual: dict[str, Any] = {"cpu": 100} if pid == RANK else {"parent": RANK}
                self.fake.use(pid, **usual | used)

    def ended(self, most: int = MANY) -> bool:
        self._now += self.seconds
        theirs = family(RANK, Children(self.fake.path).look(), frozenset())
        return not self._cost.look(theirs, most)

    def look(self, most: int = MANY) -> Cost:
        assert not self.ended(most)
        return self._cost.cost

    @property
    def left_out(self) -> int:
        return self._cost.left_out


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_rank_that_is_gone_or_a_zombie_has_no_cost(rank: Rank) -> None:
    """Neither does another process that has taken its id."""
    assert not rank.ended()
    for is_now in ({"state": "Z"}, {"start": 2000}, None):
        rank.use({RANK: is_now})
        assert rank.ended()


def test_readings_that_are_refused_are_none(rank: Rank) -> None:
    """Without io and schedstat there are no bytes and no run queue, not 0 of them."""
    rank.use({RANK: {}, WORKER: {"cpu": 50}})

    assert rank.look() == Cost(cpu_ticks=100, workers_cpu_ticks=50, workers=1)


def test_workers_are_counted_with_what_they_started(rank: Rank) -> None:
    """CPU time and the run queue are told apart from the rank's, everything else is summed.

    That its process waited for no CPU is a reading. It runs for 77 ns, as FakeProc writes for each.
    """
    assert rank.look() == Cost(100, 0, 0, 0, 0, 0, 0, None, running_nanoseconds=77)
    other = {"parent": WORKER, "cpu": 30, "read": 4000, "run_queue": 9}
    rank.use(
        {
            RANK: {"faults": 1, "read": 1000, "run_queue": 5},
            WORKER: {"cpu": 50, "faults": 2, "read": 2000, "run_queue": 7},
            OTHER_WORKER: other,
        }
    )

    assert rank.look() == Cost(100, 80, 5, 16, 3, 7000, 2, None, running_nanoseconds=77)


WORKED: Uses = {WORKER: {"cpu": 500}}
SHELL: Uses = {WORKER: {"cpu": 1}, OTHER_WORKER: {"parent": WORKER, "cpu": 500}}
ORPHAN: dict[str, Any] = {"parent": 1, "cpu": 700}


@pytest.mark.parametrize(
    ("steps", "ticks"),
    [
        # What its parent says of its ended children has a worker again: only what is new counts.
        ([WORKED, {WORKER: None, RANK: {"ended_cpu": 530}}, {}], [500, 530, 530]),
        # Its parent was read just before it ended, and has it only at the next look.
        ([WORKED, {WORKER: None}, {RANK: {"ended_cpu": 530}}], [500, 500, 530]),
        # Nobody waits for it: its time does not come again, and later children's does count.
        ([WORKED, {WORKER: None}, {}, {}, {RANK: {"ended_cpu": 40}}], [500, 500, 500, 500, 540]),
        # One that starts and ends between two looks is known from its parent.
        ([{}, {RANK: {"ended_cpu": 40}}], [0, 40]),
        # Both end at once: the rank has waited for the shell, and that for what it ran.
        ([SHELL, {WORKER: None, OTHER_WORKER: None, RANK: {"ended_cpu": 510}}], [501, 510]),
        # A process whose parent has ended now has another one, but the rank started it.
        ([SHELL, {WORKER: None, OTHER_WORKER: ORPHAN}], [501, 701]),
        # The next process with the id of an ended worker begins at 0; a stranger is no worker.
        ([WORKED, {WORKER: {"start": 2000, "cpu": 30}}], [500, 530]),
        ([WORKED, {WORKER: {"parent": 1, "start": 2000, "cpu": 30}}], [500, 500]),
    ],
    ids=[
        "waited for",
        "ends while we look",
        "nobody waits",
        "short-lived",
        "shell",
        "orphan",
        "id used again",
        "id of a stranger",
    ],
)
def test_each_worker_is_counted_once(rank: Rank, steps: list[Uses], ticks: list[int]) -> None:
    found = []
    for step in steps:
        rank.use(step)
        found.append(rank.look().workers_cpu_ticks)

    assert found == ticks


@pytest.mark.parametrize(
    ("steps", "read"),
    [
        # The rank's own bytes are in one number with those of the child that ends.
        (
            [
                {WORKER: {"read": 5000}},
                {WORKER: None, RANK: {"read": 100}},
                {RANK: {"read": 5300}},
            ],
            [5000, 5000, 5300],
        ),
        ([{WORKER: {"read": 5000}}, {WORKER: None, RANK: {"read": 5300}}], [5000, 5300]),
        # A reading that is refused later is no fall, and when it is back does not count again.
        ([{RANK: {"read": 5000}}, {RANK: {}}, {RANK: {"read": 5100}}], [5000, 5000, 5100]),
    ],
)
def test_each_byte_is_counted_once(rank: Rank, steps: list[Uses], read: list[int]) -> None:
    found = []
    for step in steps:
        rank.use(step)
        found.append(rank.look().read_bytes)

    assert found == read


def test_reading_that_falls_is_no_fall_of_the_cost(rank: Rank) -> None:
    """Whatever a kernel or a sandbox says, a counter never goes back."""

    def used(cpu: int, other: int) -> Uses:
        names = ("ended_cpu", "faults", "run_queue")
        return {RANK: {"cpu": cpu, "read": other} | dict.fromkeys(names, other)}

    rank.use(used(100, 9))
    expected = replace(rank.look(), saturated_workers=0)
    rank.use(used(50, 3))

    assert rank.look() == expected


def test_no_more_than_the_limit_is_read(rank: Rank) -> None:
    """Thousands of workers cost no more than some, and those are not forgotten for others."""
    rank.use({pid: {"cpu": 10} for pid in range(20, 50)})
    assert rank.look(most=5).workers_cpu_ticks == 40
    rank.use({WORKER: {"cpu": 10}})
    assert (rank.look(most=5).workers_cpu_ticks, rank.left_out) == (40, 27)
    assert rank.look(most=5).workers == 31
    rank.use({20: None, RANK: {"ended_cpu": 10}})
    assert rank.look(most=5).workers_cpu_ticks == 50 - 10 + 10


def test_saturated_workers_are_those_that_never_wait(rank: Rank) -> None:
    """Nine tenths of a CPU for five seconds; what it did before that does not matter."""
    looked = 15 * TICKS_PER_SECOND
    rank.use({WORKER: {"cpu": 10_000}, OTHER_WORKER: {}})
    assert rank.look().saturated_workers is None
    rank.use(
        {WORKER: {"cpu": 10_000 + int(0.8 * looked)}, OTHER_WORKER: {"cpu": int(0.95 * looked)}}
    )

    assert rank.look().saturated_workers == 1


def test_saturated_worker_is_measured_for_five_seconds_also_in_a_hurry(rank: Rank) -> None:
    """One that fills its queue in a second and then rests is not saturated."""
    rank.seconds = 1.5
    said = []
    for busy_ticks in (0, 150, 300, 450, 450, 450, 450, 450, 450):
        rank.use({WORKER: {"cpu": busy_ticks}})
        said.append(rank.look().saturated_workers)

    assert said == [None, None, None, None, 0, 0, 0, 0, 0]


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
