"""Workers of a loader: who they are, how their time is divided, and what real ones do."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from exporter.causes.model import ThreadState
from exporter.errors import Failures
from exporter.processes import worker_look, worker_states
from exporter.processes.worker_look import Pipes, WatchedWorker
from exporter.processes.worker_states import LateRankProcess, WorkerStates, loader_workers
from exporter.processes.worker_window import LEAST_LOOKS, MOST_LOOKS, WorkerLook, WorkerWindow
from rank_probe.lines.system_calls import CPU_QUEUE, DISK, LOCK, RUNNING, SLEEP, Wait
from tests.exporter.nvml.stub import wait_for

RANK = 10
PROGRAM = b"python\0train.py\0"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    add(tmp_path, RANK, PROGRAM)
    return tmp_path


def add(proc: Path, pid: int, line: bytes, name: bytes = b"python") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes(line)
    (proc / str(pid) / "comm").write_bytes(name + b"\n")


def test_rank_without_children_has_no_workers(proc: Path) -> None:
    """Nor has one whose children are gone when they are looked at."""
    assert loader_workers(proc, RANK, []) == []
    assert loader_workers(proc, RANK, [11]) == []


def test_workers_have_torchs_name(proc: Path) -> None:
    """A process that the script forked for something else has not."""
    add(proc, 11, PROGRAM)
    add(proc, 12, PROGRAM, b"pt_data_worker")

    assert loader_workers(proc, RANK, [11, 12]) == [12]


@pytest.mark.parametrize(
    ("line", "is_worker"),
    [
        (PROGRAM, True),
        (b"python\0-c\0from multiprocessing.spawn import x\0--multiprocessing-fork\0", True),
        (b"python\0-c\0from multiprocessing.forkserver import main; main(1)\0", True),
        (b"python\0-c\0from multiprocessing.resource_tracker import main\0", False),
        (b"wandb-core\0--port\0", False),
        (b"", False),
    ],
)
def test_workers_of_an_older_torch_run_the_ranks_program(
    proc: Path, line: bytes, is_worker: bool
) -> None:
    """Forked, or started by multiprocessing; helpers that are other programs are not theirs."""
    add(proc, 11, line)

    assert loader_workers(proc, RANK, [11]) == ([11] if is_worker else [])


def test_state_of_workers_is_not_shown_while_every_look_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be that of a time before, for ever."""

    class Rank:
        looks = 99
        fails = False

        def __init__(self, procfs: Path, pid: int) -> None:
            pass

        def look(self, children: object) -> None:
            if Rank.fails:
                raise RecursionError("odd file")

        def busiest(self, loader: str) -> tuple[int, list[ThreadState]]:
            return 88, [ThreadState("data", "disk", 0.5)]

    monkeypatch.setattr(worker_states, "_Rank", Rank)
    monkeypatch.setattr(worker_states, "INTERVAL_SECONDS", 0.001)
    failures = Failures()
    found = WorkerStates(Path("/nowhere"), failures)
    found.follow([LateRankProcess("llama", 3, 7)])
    found.start()
    wait_for(lambda: found.pid("llama", 3) == 88)
    Rank.fails = True
    wait_for(lambda: failures.count > 0)
    gone = found.pid("llama", 3), found.of("llama", 3)
    Rank.fails = False
    wait_for(lambda: found.pid("llama", 3) == 88)
    found.stop()

    assert gone == (None, ())


def shares(*looks: WorkerLook) -> dict[Wait, float]:
    window = WorkerWindow()
    for look in looks:
        window.add(look)
    return {wait: round(share, 3) for wait, share in window.shares().items()}


def looks(*waits: Wait | None, running: float = 0.0, queue: float = 0.0) -> list[WorkerLook]:
    """Return a look a second; None is idle. It runs and queues for these shares of the time."""
    return [
        WorkerLook(at, at * running, at * queue, at * running, wait, is_idle=wait is None)
        for at, wait in enumerate(waits)
    ]


def test_few_looks_say_nothing() -> None:
    """One that has just begun has no shares."""
    assert shares() == {}
    assert shares(*looks(*[Wait(SLEEP)] * (LEAST_LOOKS - 1))) == {}


def test_idle_worker_has_no_share() -> None:
    """It waits for work; a little of anything else is not told."""
    assert shares(*looks(*[None] * 50, Wait(SLEEP))) == {}


def test_clocks_say_how_long_it_ran_and_looks_divide_the_rest() -> None:
    """It was idle at a third of the looks, and asleep at the others."""
    found = shares(*looks(*[Wait(SLEEP), Wait(SLEEP), None] * 6, running=0.3, queue=0.1))

    assert found == {Wait(SLEEP): 0.4, Wait(RUNNING): 0.3, Wait(CPU_QUEUE): 0.1}


def test_mounts_are_told_apart_and_links_are_not() -> None:
    """A mount is the answer; which of its pipes a worker reads is not."""
    waits = [Wait(DISK, "/a (nfs)", "x"), Wait(DISK, "/a (nfs)", "y"), Wait(DISK, "/b (fuse)")] * 4

    assert shares(*looks(*waits)) == {
        Wait(DISK, "/a (nfs)"): 0.667,
        Wait(DISK, "/b (fuse)"): 0.333,
    }


def test_work_of_its_other_threads_is_its_own() -> None:
    """A decoder with threads keeps the main thread waiting for a lock."""
    waiting = [WorkerLook(at, 0.0, 0.0, 0.7 * at, Wait(LOCK)) for at in range(10)]

    assert shares(*waiting) == {Wait(RUNNING): 0.7, Wait(LOCK): 0.3}


def test_old_looks_are_forgotten() -> None:
    """What it does now counts."""
    before, after = [Wait(SLEEP)] * MOST_LOOKS, [Wait(LOCK)] * MOST_LOOKS

    assert shares(*looks(*before, *after)) == {Wait(LOCK): 1.0}


def test_a_clock_that_is_ahead_of_the_time_is_no_more_than_all_of_it() -> None:
    """Shares are at most 1."""
    assert shares(*looks(*[None] * 9, running=1.1)) == {Wait(RUNNING): pytest.approx(1.0)}


LOADER = "Corpus.__getitem__ (corpus.py:30)"
# A rank whose loader has two workers; what they do is in the first argument.
PROGRAM_OF_RANK = """
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
def states(work: str, step_seconds: float = 0.0) -> Iterator[tuple[WorkerStates, int]]:
    """Look at the workers of a rank that do *work* for each sample; also gives its process id."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM_OF_RANK, work, str(step_seconds)]
    rank = subprocess.Popen(command, stdout=subprocess.PIPE)
    found = WorkerStates(Path("/proc"))
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        found.follow([LateRankProcess("llama", 3, rank.pid, LOADER)])
        found.start()
        yield found, rank.pid
    finally:
        found.stop()
        rank.kill()
        rank.communicate()


@pytest.mark.jobs
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
    """In the stage in which its rank waits for it; and by its id, so that somebody can look at it.

    How long it waits for a CPU is up to what else runs on this machine: it wants to run then.
    """
    told: list[ThreadState] = []
    wanted = {state, "cpu_queue"} if state == "running" else {state}

    def is_told() -> bool:
        every = found.of("llama", 3)
        told[:] = [each for each in every if each.state != "cpu_queue" or "cpu_queue" in wanted]
        return bool(told) and told[0].state in wanted and told[0].share > 0.2

    with states(work) as (found, rank):
        wait_for(is_told, seconds=60)
        slow, workers = found.pid("llama", 3), psutil.Process(rank).children()

    assert (told[0].stage, told[0].place) == ("data", LOADER)
    if "get_worker_info" in work:
        assert slow == max(worker.pid for worker in workers)  # It was started last.


@pytest.mark.jobs
def test_workers_that_wait_for_work_explain_nothing() -> None:
    """They wait for their queue, which is no sleep and no pipe of the user's."""
    with states("pass", step_seconds=0.05) as (found, _):
        wait_for(lambda: looks_at(found) > 20, seconds=60)
        told = {each.state for each in found.of("llama", 3)}

    assert not told & {"pipe", "sleep", "lock"}


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
