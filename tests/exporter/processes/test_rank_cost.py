"""A rank's cost has all of its workers, living and ended, once each, and never falls."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.processes.children import Children, family
from exporter.processes.rank_cost import TICKS_PER_SECOND, Cost, RankCost
from exporter.processes.usage import stat
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


# A rank whose two workers burn 0.5 s, wait to be told, burn 0.3 s more, and end.
WITH_WORKERS = """
import os, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(999))
workers = []
for _ in range(2):
    workers.append(os.fork())
    if workers[-1] == 0:
        burn(0.5)
        os.read(0, 1)
        burn(0.3)
        os._exit(0)
for worker in workers:
    os.waitpid(worker, 0)
os.read(0, 1)
"""


def test_real_workers_are_counted_while_they_live_and_after() -> None:
    """CPU seconds of two workers that burn CPU and exit grow, and do not fall when they end."""
    command = [sys.executable, "-c", WITH_WORKERS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0) as process:
        try:
            burnt = _seconds_of_workers(process)
        finally:
            process.kill()

    assert burnt == sorted(burnt)
    assert any(0.9 <= seconds <= 1.2 for seconds in burnt)
    # Twice 0.8 s, each once; ticks are 10 ms, and a fork takes some time too.
    assert 1.5 <= burnt[-1] <= 1.8


def _seconds_of_workers(process: "subprocess.Popen[bytes]") -> list[float]:
    """Return the CPU seconds at many looks, from the workers' start until after their end."""
    proc = Path("/proc")
    started = stat(proc, process.pid)
    assert started is not None
    assert process.stdin is not None
    rank, children = RankCost(proc, process.pid, started.start_ticks), Children(proc)
    seconds: list[float] = []
    looks_after_end, deadline = 0, time.monotonic() + 60
    while looks_after_end < 3 and time.monotonic() < deadline:
        assert rank.look(family(process.pid, children.look(), frozenset()), MANY)
        before = seconds[-1] if seconds else 0.0
        seconds.append(rank.cost.workers_cpu_ticks / TICKS_PER_SECOND)
        if before < 0.95 <= seconds[-1]:
            process.stdin.write(b"..")
        looks_after_end += seconds[-1] > 1.2 and rank.cost.workers == 0
        time.sleep(0.01)
    return seconds
