"""A rank's cost has all of its workers, living and ended, once each, and never falls."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.processes.children import Children, family
from exporter.processes.rank_cost import TICKS_PER_SECOND, Cost, RankCost
from exporter.processes.usage import stat
from tests.exporter.fake_proc import FakeProc

RANK, WORKER, OTHER_WORKER = 10, 11, 12
MANY = 100


class Rank:
    """Process RANK of a fake node, looked at every fifteen seconds."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeProc(folder / "proc")
        self.fake.use(RANK, cpu=100, io=(0, 0), run_queue=0, switches=0)
        self._now = 0.0
        self.seconds = 15.0
        self._cost = RankCost(self.fake.path, RANK, 1000, lambda: self._now)

    def look(self, most: int = MANY) -> Cost | None:
        self._now += self.seconds
        theirs = family(RANK, Children(self.fake.path).look(), frozenset())
        return self._cost.cost if self._cost.look(theirs, most) else None

    def workers_cpu(self, most: int = MANY) -> int:
        cost = self.look(most)
        assert cost is not None
        return cost.workers_cpu_ticks


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_rank_that_is_gone_or_a_zombie_has_no_cost(rank: Rank) -> None:
    """Neither does another process that has taken its id."""
    assert rank.look() is not None
    rank.fake.use(RANK, state="Z")
    assert rank.look() is None
    rank.fake.use(RANK, start=2000)
    assert rank.look() is None
    rank.fake.end(RANK)
    assert rank.look() is None


def test_readings_that_are_refused_are_none(tmp_path: Path) -> None:
    """Without io and schedstat there are no bytes and no run queue, not 0 of them."""
    rank = Rank(tmp_path)
    rank.fake.use(RANK, cpu=100)
    rank.fake.use(WORKER, parent=RANK, cpu=50)

    assert rank.look() == Cost(cpu_ticks=100, workers_cpu_ticks=50, workers=1)


def test_rank_without_workers_has_its_own_cost(rank: Rank) -> None:
    """That its process waited for no CPU is a reading."""
    assert rank.look() == Cost(100, 0, 0, 0, 0, 0, 0, 0, 0, None, running_nanoseconds=77)


def test_workers_are_counted_with_what_they_started(rank: Rank) -> None:
    """CPU time and the run queue are told apart from the rank's, everything else is summed."""
    rank.fake.use(RANK, cpu=100, faults=1, io=(1000, 10), run_queue=5, switches=1)
    rank.fake.use(WORKER, parent=RANK, cpu=50, faults=2, io=(2000, 20), run_queue=7, switches=2)
    rank.fake.use(OTHER_WORKER, parent=WORKER, cpu=30, io=(4000, 40), run_queue=9, switches=4)

    assert rank.look() == Cost(100, 80, 5, 16, 7, 3, 7000, 70, 2, None, running_nanoseconds=77)


def test_worker_that_was_waited_for_is_counted_once(rank: Rank) -> None:
    """What its parent says of its ended children has it again; only what is new there counts."""
    rank.fake.use(WORKER, parent=RANK, cpu=500, faults=5, io=(5000, 50))
    rank.look()
    rank.fake.end(WORKER)
    rank.fake.use(RANK, cpu=100, ended_cpu=530, ended_faults=6, io=(5300, 53))
    cost = rank.look()

    assert cost is not None
    assert (cost.workers_cpu_ticks, cost.major_faults) == (530, 6)
    assert (cost.read_bytes, cost.written_bytes) == (5300, 53)
    assert rank.workers_cpu() == 530


def test_worker_that_ends_while_we_look_is_counted_once(rank: Rank) -> None:
    """Its parent was read just before, and has it only at the next look."""
    rank.fake.use(WORKER, parent=RANK, cpu=500)
    rank.look()
    rank.fake.end(WORKER)
    assert rank.workers_cpu() == 500
    rank.fake.use(RANK, cpu=100, ended_cpu=530)
    assert rank.workers_cpu() == 530


def test_bytes_of_the_parent_meanwhile_are_not_lost(rank: Rank) -> None:
    """Its own bytes are in one number with those of the child that ends while we look."""
    rank.fake.use(WORKER, parent=RANK, io=(5000, 0))
    rank.look()
    rank.fake.end(WORKER)
    rank.fake.use(RANK, io=(100, 0))
    rank.look()
    rank.fake.use(RANK, io=(5300, 0))
    cost = rank.look()

    assert cost is not None
    assert cost.read_bytes == 5300


def test_worker_that_nobody_waits_for_stays_counted(rank: Rank) -> None:
    """Its time does not come again, and later children's does count."""
    rank.fake.use(WORKER, parent=RANK, cpu=500)
    rank.look()
    rank.fake.end(WORKER)
    assert [rank.workers_cpu() for _ in range(3)] == [500] * 3
    rank.fake.use(RANK, cpu=100, ended_cpu=40)
    assert rank.workers_cpu() == 540


def test_short_lived_worker_is_counted(rank: Rank) -> None:
    """One that starts and ends between two looks is known from its parent."""
    rank.look()
    rank.fake.use(RANK, cpu=100, ended_cpu=40)

    assert rank.workers_cpu() == 40


def test_shell_and_what_it_ran_are_counted_once(rank: Rank) -> None:
    """Both end at once: the rank has waited for the one, and that for the other."""
    rank.fake.use(WORKER, parent=RANK, cpu=1)
    rank.fake.use(OTHER_WORKER, parent=WORKER, cpu=500)
    rank.look()
    rank.fake.end(WORKER)
    rank.fake.end(OTHER_WORKER)
    rank.fake.use(RANK, cpu=100, ended_cpu=510)

    assert rank.workers_cpu() == 510


def test_orphan_still_belongs_to_the_rank(rank: Rank) -> None:
    """A process whose parent has ended now has another one, but the rank started it."""
    rank.fake.use(WORKER, parent=RANK, cpu=1)
    rank.fake.use(OTHER_WORKER, parent=WORKER, cpu=500)
    rank.look()
    rank.fake.end(WORKER)
    rank.fake.use(OTHER_WORKER, parent=1, cpu=700)

    assert rank.workers_cpu() == 701


def test_reused_process_id_is_another_worker(rank: Rank) -> None:
    """The next process with the id of an ended worker begins at 0."""
    rank.fake.use(WORKER, parent=RANK, cpu=500)
    rank.look()
    rank.fake.use(WORKER, parent=RANK, start=2000, cpu=30)

    assert rank.workers_cpu() == 530


def test_reused_process_id_of_a_stranger_is_not_counted(rank: Rank) -> None:
    """Whose parent is another is no worker, though its id was one's."""
    rank.fake.use(WORKER, parent=RANK, cpu=500)
    rank.look()
    rank.fake.use(WORKER, parent=1, start=2000, cpu=30)

    assert rank.workers_cpu() == 500


def test_reading_that_is_refused_later_is_no_fall(rank: Rank) -> None:
    """And when it is back, what was read before does not count again."""
    rank.fake.use(RANK, io=(5000, 0))
    rank.look()
    rank.fake.use(RANK)
    without = rank.look()
    assert without is not None
    assert without.read_bytes == 5000
    rank.fake.use(RANK, io=(5100, 0))
    again = rank.look()
    assert again is not None
    assert again.read_bytes == 5100


def test_reading_that_falls_is_no_fall_of_the_cost(rank: Rank) -> None:
    """Whatever a kernel or a sandbox says, a counter never goes back."""
    rank.fake.use(RANK, cpu=100, ended_cpu=9, faults=9, io=(9, 9), run_queue=9, switches=9)
    before = rank.look()
    assert before is not None
    expected = replace(before, saturated_workers=0)
    rank.fake.use(RANK, cpu=50, ended_cpu=3, faults=3, io=(3, 3), run_queue=3, switches=3)

    assert rank.look() == expected


def test_no_more_than_the_limit_is_read(rank: Rank) -> None:
    """Thousands of workers cost no more than some, and those are not forgotten for others."""
    for pid in range(20, 50):
        rank.fake.use(pid, parent=RANK, cpu=10)
    assert rank.workers_cpu(most=5) == 40
    rank.fake.use(WORKER, parent=RANK, cpu=10)
    assert rank.workers_cpu(most=5) == 40
    assert rank._cost.left_out == 27
    assert rank._cost.cost.workers == 31
    rank.fake.end(20)
    rank.fake.use(RANK, cpu=100, ended_cpu=10)
    assert rank.workers_cpu(most=5) == 50 - 10 + 10


def test_saturated_workers_are_those_that_never_wait(rank: Rank) -> None:
    """Nine tenths of a CPU for five seconds; what it did before that does not matter."""
    rank.fake.use(WORKER, parent=RANK, cpu=10_000)
    rank.fake.use(OTHER_WORKER, parent=RANK, cpu=0)
    first = rank.look()
    assert first is not None
    assert first.saturated_workers is None
    rank.fake.use(WORKER, parent=RANK, cpu=10_000 + int(0.8 * 15 * TICKS_PER_SECOND))
    rank.fake.use(OTHER_WORKER, parent=RANK, cpu=int(0.95 * 15 * TICKS_PER_SECOND))
    rank.fake.use(RANK, cpu=100 + 15 * TICKS_PER_SECOND)
    second = rank.look()
    assert second is not None
    assert second.saturated_workers == 1


def test_saturated_worker_is_measured_for_five_seconds_also_in_a_hurry(rank: Rank) -> None:
    """One that fills its queue in a second and then rests is not saturated."""
    rank.seconds = 1.5
    said = []
    for busy_ticks in (0, 150, 300, 450, 450, 450, 450, 450, 450):
        rank.fake.use(WORKER, parent=RANK, cpu=busy_ticks)
        look = rank.look()
        assert look is not None
        said.append(look.saturated_workers)

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


def test_running_time_is_that_of_the_ranks_own_main_thread(tmp_path: Path) -> None:
    """The time for which it ran, without that of its workers."""
    rank = Rank(tmp_path)
    rank.fake.use(WORKER, parent=RANK, run_queue=1)
    cost = rank.look()

    assert cost is not None
    assert cost.running_nanoseconds == 77  # What FakeProc writes for each.
