"""Processes are read from /proc as far as they can be; a rank's cost has its workers once each."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.processes import cgroup_cost
from exporter.processes.cgroup_cost import CgroupCost, CgroupCosts, Throttling
from exporter.processes.children import Children, family
from exporter.processes.process import Proc, environment
from exporter.processes.rank_cost import TICKS_PER_SECOND, Cost, RankCost
from exporter.processes.usage import Work, usage
from rank_probe.process.identity import NAMESPACE_FILE
from tests.exporter.collectors.host import write
from tests.exporter.fake_proc import TORCHRUN, FakeProc

PID = 4711


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_process_that_is_gone_is_none(tmp_path: Path) -> None:
    """No such process, or no proc file system at all, is not an error."""
    for procfs in (tmp_path, tmp_path / "missing"):
        assert Proc(procfs).process(PID) is None
        assert Proc(procfs).online_cpus() == frozenset()
        assert usage(procfs, PID) is None
        assert Children(procfs).look() == {}


def test_all_that_is_needed_is_read(fake: FakeProc) -> None:
    """Name, parents, user, own id, CPUs, launcher's variables and host name are there.

    Nothing below its root: its owner decides what lies there, a pipe or a link to another's file.
    """
    pod = TORCHRUN | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    file = fake.path / str(PID) / "root" / NAMESPACE_FILE.relative_to("/")
    write(file, "stolen")
    fake.add(10, parent=1)
    fake.add(20, parent=10)
    fake.add(
        PID,
        pod | {"SECRET_TOKEN": "x"},
        parent=20,
        name="pt) main (1",
        cpus="0-1,3-255",
        namespace_pids=f"{PID}\t31\t7",
        uts="uts:[2]",
        cgroup="0::/slurm/uid_0/job_5/step_1",
    )
    proc = Proc(fake.path)
    process = proc.process(PID, online_cpus=proc.online_cpus())

    assert process is not None
    assert (process.name, process.start_ticks, process.uid) == ("pt) main (1", 1000, 1000)
    assert process.ancestors == (20, 10)
    assert process.namespace_pid == 7
    assert process.cpus == frozenset({0, 1, 3})  # An affinity may name CPUs that are off.
    assert process.environment == pod
    assert process.has_own_hostname is True
    assert process.cgroup.slurm_job_id == "5"


def test_what_cannot_be_read_is_absent(fake: FakeProc) -> None:
    """Without the right to see more, a process still has a name; a right given later is used.

    What may change is read each time. A process id that is used again is another process.
    """
    fake.add(PID, cpus="0-3")
    fake.hide_environment(PID)
    for name in ("status", "cgroup", "ns/uts"):
        (fake.path / str(PID) / name).unlink()
    proc = Proc(fake.path)
    hidden = proc.process(PID)

    assert hidden is not None
    assert hidden.name == "python"
    assert (hidden.environment, hidden.cpus, hidden.uid) == (None, None, None)
    assert (hidden.namespace_pid, hidden.has_own_hostname) == (None, None)

    (fake.path / str(PID) / "environ").rmdir()
    fake.add(PID, TORCHRUN, cpus="0-3")
    known = proc.process(PID, hidden)
    fake.add(PID, {"RANK": "0"}, cpus="2", start=2000)
    other = proc.process(PID, known)
    assert known is not None
    assert other is not None
    assert (known.environment, known.cpus) == (TORCHRUN, frozenset({0, 1, 2, 3}))
    assert (other.environment, other.cpus) == ({"RANK": "0"}, frozenset({2}))


def test_circle_of_parents_ends(fake: FakeProc) -> None:
    """Processes that are replaced while they are followed cannot hold us up."""
    fake.add(10, parent=20)
    fake.add(20, parent=10)
    process = Proc(fake.path).process(10)

    assert process is not None
    assert len(process.ancestors) == 32
    assert family(10, Children(fake.path).look(), frozenset()) == {10: 0, 20: 10}


@pytest.mark.parametrize("value", [b"\xff", b"two\nlines", b"x" * 2000, b"\xe2\x80\xae"])
def test_value_that_no_label_may_hold_is_left_out(value: bytes) -> None:
    """Another user's environment reaches neither the page nor a terminal unless it is text."""
    block = b"RANK=1\0RANKSKEW_JOB_ID=" + value + b"\0LOCAL_RANK=2\0"
    assert environment(block) == {"RANK": "1", "LOCAL_RANK": "2"}


def test_file_of_nonsense_is_no_reading(fake: FakeProc) -> None:
    """Whatever a kernel or a sandbox writes, one odd file costs one reading."""
    fake.use(PID, cpu=7)
    write(fake.path / str(PID) / "io", "read_bytes: x\nwrite_bytes: 1\n")
    write(fake.path / str(PID) / "schedstat", "0 0 0\n")  # A kernel without scheduler statistics.
    found = usage(fake.path, PID)
    assert found is not None
    assert found.own == Work(7, 0)
    assert (found.read_bytes, found.run_queue_nanoseconds) == (None, None)

    for odd in ("", "4711 (x", "4711 (x) S 1", "4711 (x) S " + "x " * 50):
        write(fake.path / str(PID) / "stat", odd)
        assert usage(fake.path, PID) is None


RANK, WORKER, OTHER_WORKER = 10, 11, 12


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

    def ended(self) -> bool:
        self._now += self.seconds
        theirs = family(RANK, Children(self.fake.path).look(), frozenset())
        return not self._cost.look(theirs, most=100)

    def look(self) -> Cost:
        assert not self.ended()
        return self._cost.cost

    def looks(self, steps: list[Uses]) -> Iterator[Cost]:
        """Yield what the rank has cost after each of *steps*."""
        for step in steps:
            self.use(step)
            yield replace(self.look())


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_rank_that_is_gone_or_a_zombie_has_no_cost(rank: Rank) -> None:
    """Neither does another process that has taken its id."""
    assert not rank.ended()
    for is_now in ({"state": "Z"}, {"start": 2000}, None):
        rank.use({RANK: is_now})
        assert rank.ended()


def test_workers_are_counted_with_what_they_started(rank: Rank) -> None:
    """CPU time and the run queue are told apart from the rank's, everything else is summed.

    That its process waited for no CPU is a reading. It runs for 77 ns, as FakeProc writes for each.
    """
    assert rank.look() == Cost(100, 0, 0, 0, 0, 0, 0, None, running_nanoseconds=77)
    other = {"parent": WORKER, "cpu": 30, "faults": 2, "read": 4000, "run_queue": 9}
    rank.use({WORKER: {"cpu": 50, "read": 2000, "run_queue": 7}, OTHER_WORKER: other})

    assert rank.look() == Cost(100, 80, 0, 16, 2, 6000, 2, None, running_nanoseconds=77)


WORKERS, BYTES = "workers_cpu_ticks", "read_bytes"
WORKED: Uses = {WORKER: {"cpu": 500}}
SHELL: Uses = {WORKER: {"cpu": 1}, OTHER_WORKER: {"parent": WORKER, "cpu": 500}}
ENDS: Uses = {WORKER: None}
BOTH_END: Uses = {WORKER: None, OTHER_WORKER: None}
ORPHAN: dict[str, Any] = {"parent": 1, "cpu": 700}


READ: Uses = {WORKER: {"read": 5000}}


@pytest.mark.parametrize(
    ("of", "steps", "counted"),
    [
        # What its parent says of its ended children has a worker again: only what is new counts.
        (WORKERS, [WORKED, ENDS | {RANK: {"ended_cpu": 530}}, {}], [500, 530, 530]),
        # Its parent was read just before it ended, and has it only at the next look.
        (WORKERS, [WORKED, ENDS, {RANK: {"ended_cpu": 530}}], [500, 500, 530]),
        # Nobody waits for it: its time does not come again, and later children's does count.
        (WORKERS, [WORKED, ENDS, {}, {RANK: {"ended_cpu": 40}}], [500, 500, 500, 540]),
        # One that starts and ends between two looks is known from its parent.
        (WORKERS, [{}, {RANK: {"ended_cpu": 40}}], [0, 40]),
        # Both end at once: the rank has waited for the shell, and that for what it ran.
        (WORKERS, [SHELL, BOTH_END | {RANK: {"ended_cpu": 510}}], [501, 510]),
        # A process whose parent has ended now has another one, but the rank started it.
        (WORKERS, [SHELL, {WORKER: None, OTHER_WORKER: ORPHAN}], [501, 701]),
        # The next process with the id of an ended worker begins at 0; a stranger is no worker.
        (WORKERS, [WORKED, {WORKER: {"start": 2000, "cpu": 30}}], [500, 530]),
        (WORKERS, [WORKED, {WORKER: {"parent": 1, "start": 2000, "cpu": 30}}], [500, 500]),
        # The rank's own bytes are in one number with those of the child that ends.
        (BYTES, [READ, ENDS | {RANK: {"read": 5300}}], [5000, 5300]),
        # A reading that is refused later is no fall, and when it is back does not count again.
        (BYTES, [{RANK: {"read": 50}}, {RANK: {}}, {RANK: {"read": 51}}], [50, 50, 51]),
        # Whatever a kernel or a sandbox says, a counter never goes back.
        ("cpu_ticks", [{RANK: {"cpu": 90}}, {RANK: {"cpu": 50}}], [100, 100]),
        (WORKERS, [{RANK: {"ended_cpu": 9}}, {RANK: {"ended_cpu": 3}}], [9, 9]),
        ("run_queue_nanoseconds", [{RANK: {"run_queue": 9}}, {RANK: {"run_queue": 3}}], [9, 9]),
    ],
)
def test_what_is_used_counts_once(
    rank: Rank, of: str, steps: list[Uses], counted: list[int]
) -> None:
    assert not rank.ended()
    assert [getattr(cost, of) for cost in rank.looks(steps)] == counted


@pytest.mark.parametrize(
    ("seconds", "used", "saturated"),
    [
        # Nine tenths of a CPU for five seconds; what it did before that does not matter.
        (15.0, [10_000, 10_000 + 12 * TICKS_PER_SECOND], [None, 0]),
        (15.0, [0, int(14.2 * TICKS_PER_SECOND)], [None, 1]),
        # In a hurry, one that fills its queue in a second and then rests is not saturated.
        (1.5, [0, 150, 300, *[450] * 4], [None, None, None, None, 0, 0, 0]),
    ],
)
def test_saturated_workers_are_those_that_never_wait(
    rank: Rank, seconds: float, used: list[int], saturated: list[int | None]
) -> None:
    rank.seconds = seconds
    steps: list[Uses] = [{WORKER: {"cpu": ticks}} for ticks in used]

    assert [each.saturated_workers for each in rank.looks(steps)] == saturated


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


def cost_of(folder: Path, paths: str, files: dict[str, str]) -> CgroupCost:
    """Return what a process costs in the cgroups *paths* of a node."""
    write(folder / "proc" / str(PID) / "cgroup", paths)
    for name, text in files.items():
        write(folder / "sys/fs/cgroup" / name, text)
    costs = CgroupCosts(folder / "proc", folder / "sys")
    return costs.cost(costs.path(PID))


@pytest.mark.parametrize(
    ("paths", "files", "cost"),
    [
        # No sysfs, no process, or a file that is nonsense: no reading, and no error.
        (f"0::/{POD}\n", {}, NOTHING),
        ("nonsense\n::\n0:\n1:cpu\n", {}, NOTHING),
        # That one without a quota has never been throttled is no reading: it cannot be.
        (f"0::/{POD}\n", quota(POD, "max 100000"), NOTHING),
        # The limit may be the container's, or that of a pod or Slurm job around it.
        (f"0::/{POD}\n", quota(POD), THROTTLED),
        (f"0::/{POD}\n", quota(POD, "max 100000") | quota("kubepods.slice"), THROTTLED),
        # A kernel that does not tell how often it throttles has no series.
        (f"0::/{POD}\n", quota(POD) | {f"{POD}/cpu.stat": "usage_usec 9\n"}, NOTHING),
        # What cannot be read (psi=0, an old kernel) is missing, the others are there.
        (
            f"0::/{POD}\n",
            {f"{POD}/{resource}.pressure": PRESSURE for resource in ("cpu", "io")},
            CgroupCost(None, {"cpu": 1.5, "io": 1.5}),
        ),
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
    assert cost_of(tmp_path, paths, files) == cost
    assert CgroupCosts(tmp_path / "missing", tmp_path).path(PID) == ""


def test_cgroup_seen_from_a_container_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To an exporter with a cgroup namespace of its own, paths are relative to that.

    Without the node's sysfs, the paths of others lead nowhere, and none is guessed.
    """
    relative = "0::/../../pod1.slice/rank.scope\n"
    tree = tmp_path / "sys/fs/cgroup"
    own = tree / "kubepods.slice/pod2.slice/exporter.scope"
    own.mkdir(parents=True)
    seen = tmp_path / "seen"
    seen.symlink_to(own)  # A second mount of the same folder.
    monkeypatch.setattr(cgroup_cost, "OWN", seen)
    assert cost_of(tmp_path, relative, quota(POD)) == THROTTLED

    for elsewhere in (tmp_path / "missing", tmp_path, tree):
        monkeypatch.setattr(cgroup_cost, "OWN", elsewhere)
        assert cost_of(tmp_path, relative, quota("pod1.slice/rank.scope")) == NOTHING
