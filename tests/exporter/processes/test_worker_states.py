"""What real workers of a real loader do is told right, from another process's point of view."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.causes.model import ThreadState
from exporter.processes import worker_look
from exporter.processes.worker_look import Pipes, WatchedWorker
from exporter.processes.worker_states import LateRankProcess, WorkerStates
from tests.exporter.nvml.stub import wait_for

pytestmark = pytest.mark.jobs

LOADER = "Corpus.__getitem__ (corpus.py:30)"
# A rank whose loader has two workers; what they do is in the first argument.
RANK = """
import sys, time, threading
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Corpus(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        exec(sys.argv[1])
        return 0

def train():
    batches = iter(DataLoader(Corpus(), 1, num_workers=2, multiprocessing_context="fork"))
    next(batches)
    print(flush=True)
    for _ in batches:
        time.sleep(float(sys.argv[2]))

train()
"""


@contextmanager
def states(work: str, step_seconds: float = 0.0) -> Iterator[WorkerStates]:
    """Look at the workers of a rank that do *work* for each sample."""
    command = [sys.executable, "-W", "ignore", "-c", RANK, work, str(step_seconds)]
    rank = subprocess.Popen(command, stdout=subprocess.PIPE)
    found = WorkerStates(Path("/proc"))
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        found.follow([LateRankProcess("llama", 3, rank.pid, LOADER)])
        found.start()
        yield found
    finally:
        found.stop()
        rank.kill()
        rank.communicate()


def first(found: WorkerStates) -> ThreadState:
    """Return what they do most, as soon as it is told.

    Not a wait for a CPU: that is up to what else runs on this machine.
    """
    wait_for(lambda: bool(found.of("llama", 3)), seconds=20)
    time.sleep(1.0)
    return next(each for each in found.of("llama", 3) if each.state != "cpu_queue")


@pytest.mark.parametrize(
    ("work", "state"),
    [
        ("time.sleep(0.05)", "sleep"),
        # One of two: the loop waits for it all the same.
        ("time.sleep(0.1 * get_worker_info().id)", "sleep"),
        ("sum(range(1_000_000 * get_worker_info().id))", "running"),
        ("lock = threading.Lock(); lock.acquire(); lock.acquire(timeout=0.05)", "lock"),
    ],
)
def test_busiest_worker_is_told_with_what_it_runs(work: str, state: str) -> None:
    """In the stage in which its rank waits for it."""
    with states(work) as found:
        told = first(found)

    assert (told.stage, told.state, told.place) == ("data", state, LOADER)
    assert told.share > 0.2


def test_slow_worker_is_told_by_its_id() -> None:
    """So that somebody can look at it; the other one waits for work."""
    with states("time.sleep(0.1 * get_worker_info().id)") as found:
        first(found)
        (rank,) = found._ranks.values()
        assert found.pid("llama", 3) == max(rank._workers)  # It was started last.


def test_workers_that_wait_for_work_explain_nothing() -> None:
    """They wait for their queue, which is no sleep and no pipe of the user's."""
    with states("pass", step_seconds=0.05) as found:
        wait_for(lambda: looks_at(found) > 20, seconds=20)
        assert [
            each for each in found.of("llama", 3) if each.state in ("pipe", "sleep", "lock")
        ] == []


def looks_at(found: WorkerStates) -> int:
    return max((rank.looks for rank in found._ranks.values()), default=0)


def test_rank_without_workers_has_no_states() -> None:
    """Nor one that has ended, or that nobody follows."""
    found = WorkerStates(Path("/proc"))
    found.look()
    assert found.of("llama", 3) == ()
    found.follow([LateRankProcess("llama", 3, os.getpid()), LateRankProcess("llama", 4, 2**22)])
    for _ in range(20):
        found.look()
    assert found.of("llama", 3) == found.of("llama", 4) == ()
    assert found.pid("llama", 3) is None


def test_ranks_that_are_no_longer_late_are_forgotten() -> None:
    """And nothing is read until there is one again."""
    with states("time.sleep(0.05)") as found:
        first(found)
        found.follow([])
        wait_for(lambda: not found.of("llama", 3), seconds=10)
        wait_for(lambda: not found._ranks)
        found.follow([LateRankProcess("llama", 5, os.getpid())])
        wait_for(lambda: looks_at(found) > 1, seconds=10)


def sleeps() -> None:
    time.sleep(600)


def test_worker_that_may_not_be_read_is_idle(tmp_path: Path) -> None:
    """Without the right to see what it waits for, nothing is said of it."""
    child = multiprocessing.get_context("fork").Process(target=sleeps)
    child.start()
    assert child.pid is not None
    folder = tmp_path / str(child.pid)
    folder.mkdir()
    worker = WatchedWorker(tmp_path, child.pid, Pipes(tmp_path, os.getpid()))
    try:
        wait_for(lambda: state_of(child.pid or 0) == "S")
        for _ in range(20):
            for name in ("stat", "schedstat"):
                (folder / name).write_bytes(Path(f"/proc/{child.pid}/{name}").read_bytes())
            (folder / "wchan").write_text("0")
            assert worker.look()
        assert worker.window.shares() == {}
    finally:
        child.kill()
        child.join()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_pipe_of_the_rank_is_known(tmp_path: Path) -> None:
    """Its workers get their work from one; a decoder's pipe is another."""
    now = 0.0
    pipes = Pipes(Path("/proc"), os.getpid())
    one, other = os.pipe()
    link = os.readlink(f"/proc/self/fd/{one}")
    assert pipes.has(link, now)
    assert not pipes.has("pipe:[1]", now)
    assert not Pipes(tmp_path, os.getpid()).has(link, now)
    os.close(one)
    os.close(other)


def test_of_a_million_descriptors_few_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user may open so many, and each look would take seconds."""
    monkeypatch.setattr(worker_look, "MOST_DESCRIPTORS", 3)
    (tmp_path / "7" / "fd").mkdir(parents=True)
    for number in range(9):
        (tmp_path / "7" / "fd" / str(number)).symlink_to(f"pipe:[{number}]")
    pipes = Pipes(tmp_path, 7)

    assert sum(pipes.has(f"pipe:[{number}]", 0.0) for number in range(9)) == 3
