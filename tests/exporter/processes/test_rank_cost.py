"""A rank's cost has its workers, living and ended, once each, never falls, and names its cgroup."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.processes.cgroup_cost import CgroupCost, CgroupCosts, Throttling
from exporter.processes.children import Children, family
from exporter.processes.rank_cost import TICKS_PER_SECOND, Cost, RankCost
from tests.exporter.collectors.host import write
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
POD = "kubepods.slice/pod1.slice/rank.scope"
PRESSURE = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"
)
THROTTLED = CgroupCost(Throttling(100, 25))
NOTHING = CgroupCost()
# Beside version 2, which then has no CPU controller.
VERSION_1 = "5:cpu,cpuacct:/slurm/job_7\n4:memory:/\n0::/init.scope\n"
JOB = {
    "cpu/slurm/job_7/cpu.cfs_quota_us": "-1\n",
    "cpu/slurm/job_7/cpu.stat": STAT_1,
    "unified/x": "",
}


def quota(cgroup: str, limit: str = "800000 100000") -> dict[str, str]:
    return {f"{cgroup}/cpu.max": f"{limit}\n", f"{cgroup}/cpu.stat": STAT_2}


def cost_of(folder: Path, paths: str, files: dict[str, str], own: Path) -> CgroupCost:
    """Return what a process costs in the cgroups *paths* of a node; the exporter sees *own*."""
    write(folder / "proc" / str(PID) / "cgroup", paths)
    for name, text in files.items():
        write(folder / "sys/fs/cgroup" / name, text)
    costs = CgroupCosts(folder / "proc", folder / "sys", own)
    return costs.cost(costs.path(PID))


@pytest.mark.parametrize(
    ("paths", "files", "cost"),
    [
        # No sysfs, no process, or a file that is nonsense: no reading, and no error.
        (f"0::/{POD}\n", {}, NOTHING),
        ("", {}, NOTHING),
        ("nonsense\n::\n0:\n1:cpu\n", {}, NOTHING),
        # That one without a quota has never been throttled is no reading: it cannot be.
        (f"0::/{POD}\n", quota(POD, "max 100000"), NOTHING),
        # The limit may be the container's, the pod's, or that of a Slurm job around its steps.
        (f"0::/{POD}\n", quota(POD), THROTTLED),
        (
            f"0::/{POD}\n",
            quota(POD, "max 100000") | quota("kubepods.slice/pod1.slice"),
            THROTTLED,
        ),
        (f"0::/{POD}\n", quota(POD, "max 100000") | quota("kubepods.slice"), THROTTLED),
        # A kernel that does not tell how often it throttles has no series.
        (f"0::/{POD}\n", quota(POD) | {f"{POD}/cpu.stat": "usage_usec 9\n"}, NOTHING),
        # What cannot be read (psi=0, an old kernel) is missing, the others are there.
        (
            f"0::/{POD}\n",
            {f"{POD}/{resource}.pressure": PRESSURE for resource in ("cpu", "io")},
            CgroupCost(None, {"cpu": 1.5, "io": 1.5}),
        ),
        (VERSION_1, JOB, NOTHING),
        (
            VERSION_1,
            JOB | {"cpu/slurm/cpu.cfs_quota_us": "800000\n", "cpu/slurm/cpu.stat": STAT_1},
            THROTTLED,
        ),
        # A path of a thousand levels is not walked.
        ("0::" + "/a" * 1000 + "\n", {"cpu.max": "1 2\n", "cpu.stat": STAT_2}, NOTHING),
    ],
)
def test_cgroup_says_how_a_rank_was_held_back(
    tmp_path: Path, paths: str, files: dict[str, str], cost: CgroupCost
) -> None:
    """By the innermost quota, and by the pressure on its tasks."""
    assert cost_of(tmp_path, paths, files, Path("/missing")) == cost
    assert CgroupCosts(tmp_path / "missing", tmp_path).path(PID) == ""


def test_cgroup_seen_from_a_container_is_found(tmp_path: Path) -> None:
    """To an exporter with a cgroup namespace of its own, paths are relative to that.

    Without the node's sysfs, the paths of others lead nowhere, and none is guessed.
    """
    relative = "0::/../../pod1.slice/rank.scope\n"
    tree = tmp_path / "sys/fs/cgroup"
    own = tree / "kubepods.slice/pod2.slice/exporter.scope"
    own.mkdir(parents=True)
    seen = tmp_path / "seen"
    seen.symlink_to(own)  # A second mount of the same folder.
    assert cost_of(tmp_path, relative, quota(POD), seen) == THROTTLED

    for elsewhere in (tmp_path / "missing", tmp_path, tree):
        files = quota("pod1.slice/rank.scope")
        assert cost_of(tmp_path, relative, files, elsewhere) == NOTHING
