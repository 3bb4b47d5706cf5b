"""Workers of a loader: who they are, and how their time is divided, from what /proc says of them.

tests/nightly/test_loader_workers.py looks at those of a real loader.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.causes.model import ThreadState
from exporter.errors import Failures
from exporter.processes import worker_look, worker_states
from exporter.processes.worker_look import (
    LEAST_LOOKS,
    MOST_LOOKS,
    Pipes,
    WatchedWorker,
    WorkerLook,
    WorkerWindow,
)
from exporter.processes.worker_states import (
    LOOKS_BEFORE_LISTED_AGAIN,
    LateRankProcess,
    WorkerStates,
    loader_workers,
)
from rank_probe.lines.system_calls import CPU_QUEUE, DISK, LOCK, RUNNING, SLEEP, Reader, Wait
from tests.exporter.collectors.host import write
from tests.exporter.fake_proc import FakeProc
from tests.exporter.node import Clock
from tests.exporter.running import wait_until

RANK, WORKER, OTHER = 10, 11, 12
PROGRAM = "python\0train.py\0"


@pytest.mark.parametrize(
    ("line", "name", "found"),
    [
        # By torch's name: what the script forked for something else has another.
        (PROGRAM, "pt_data_worker", [WORKER]),
        # With an older torch those that run the rank's program, or that multiprocessing started.
        (PROGRAM, "python", [WORKER, OTHER]),
        ("python\0-c\0import spawn\0--multiprocessing-fork\0", "", [WORKER, OTHER]),
        ("python\0-c\0from multiprocessing.resource_tracker import main\0", "", [OTHER]),
        ("wandb-core\0--port\0", "", [OTHER]),
    ],
)
def test_workers_are_known_by_name_or_program(
    tmp_path: Path, line: str, name: str, found: list[int]
) -> None:
    """A child that is gone when it is looked at is none."""
    for pid, command in ((RANK, PROGRAM), (WORKER, line), (OTHER, PROGRAM)):
        write(tmp_path / str(pid) / "cmdline", command)
    write(tmp_path / str(WORKER) / "comm", f"{name}\n")

    assert loader_workers(tmp_path, RANK, []) == []
    assert loader_workers(tmp_path, RANK, [WORKER, OTHER, 404]) == found


LOADER = "Corpus.__getitem__ (corpus.py:30)"


class Loader:
    """A rank with two workers in a fake /proc, looked at every second."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeProc(folder)
        self.clock = Clock(0.0)
        monkeypatch.setattr(worker_look, "time", SimpleNamespace(monotonic=self.clock))
        self.failures = Failures()
        self.states = WorkerStates(folder, self.failures)
        self.states.follow([LateRankProcess("llama", 3, RANK, LOADER)])
        (folder / str(RANK) / "fd").mkdir(parents=True)
        (folder / str(RANK) / "fd" / "5").symlink_to("pipe:[5]")
        for pid in (RANK, WORKER, OTHER):
            self.be(pid)

    def be(
        self,
        pid: int,
        wchan: str = "pipe_read",
        syscall: str | None = None,
        state: str = "S",
        running: float = 0.0,
        queue: float = 0.0,
        start: int = 1000,
    ) -> None:
        """Let a process wait so, and have run and queued for these shares of all the time."""
        cpu, queued = (round(self.clock.seconds * share * 1e9) for share in (running, queue))
        parent = 1 if pid == RANK else RANK
        self.fake.use(pid, parent=parent, state=state, cpu=round(cpu / 1e7), start=start)
        texts = {"cmdline": PROGRAM, "schedstat": f"{cpu} {queued} 5\n", "wchan": wchan}
        for name, text in (texts | ({"syscall": syscall} if syscall else {})).items():
            write(self.fake.path / str(pid) / name, text)

    def looks(self, number: int = LEAST_LOOKS, pid: int = WORKER, **how: Any) -> list[ThreadState]:
        """Return what is told after so many looks at a worker that is *how*."""
        for _ in range(number):
            self.clock.seconds += 1.0
            self.be(pid, **how)
            self.states.look()
        return list(self.states.of("llama", 3))


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    return Loader(tmp_path / "proc", monkeypatch)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"wchan": "hrtimer_nanosleep"}, [("sleep", LOADER, 1.0)]),
        ({"wchan": "0", "state": "R", "running": 1.0}, [("running", LOADER, 1.0)]),
        (
            {"wchan": "0", "state": "R", "running": 0.6, "queue": 0.4},
            [("running", LOADER, 0.6), ("cpu_queue", "", 0.4)],
        ),
        ({"wchan": "", "state": "D"}, [("disk", "", 1.0)]),
        ({"syscall": "running"}, []),
        # It waits for work; or for what nobody may see, of which nothing is said.
        ({"wchan": "pipe_read"}, []),
        ({"wchan": "0"}, []),
        ({"state": "Z"}, []),
    ],
)
def test_what_a_worker_does_is_told_in_the_stage_that_waits_for_it(
    loader: Loader, how: dict[str, Any], told: list[tuple[str, str, float]]
) -> None:
    """With what it runs, and by its id, so that somebody can look at it."""
    found = loader.looks(**how)

    assert [(each.state, each.place, round(each.share, 2)) for each in found] == told
    assert {each.stage for each in found} <= {"data"}
    assert loader.states.pid("llama", 3) == (WORKER if told else None)


def test_busiest_worker_is_told(loader: Loader) -> None:
    """One of two: the loop takes batches in turn, so it waits for that one all the same.

    A loader starts new ones in each epoch; another process with the id of one is none.
    """
    for number in range(2 * LEAST_LOOKS):
        loader.be(WORKER, wchan="hrtimer_nanosleep" if number % 2 else "pipe_read")
        loader.looks(1, OTHER, wchan="hrtimer_nanosleep" if number % 4 else "pipe_read")
    assert loader.states.pid("llama", 3) == OTHER

    loader.fake.end(OTHER)
    loader.looks(1)
    assert loader.states.pid("llama", 3) == WORKER
    assert loader.looks(1, start=2000) == []
    told = loader.looks(LEAST_LOOKS + LOOKS_BEFORE_LISTED_AGAIN, wchan="hrtimer_nanosleep")
    assert [each.state for each in told] == ["sleep"]

    loader.states.follow([])
    assert loader.looks(1) == []


def test_pipe_of_the_rank_is_where_its_worker_waits_for_work(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pipe, a decoder's, is what it waits for; the rank may open new ones any time."""
    waits = {b"rank": Wait("pipe", link="pipe:[5]"), b"other": Wait("pipe", link="pipe:[6]")}
    monkeypatch.setattr(Reader, "wait", lambda self, call, _: waits[call])
    assert loader.looks(syscall="rank") == []
    told = loader.looks(4 * LEAST_LOOKS, syscall="other")
    assert told[0].state == "pipe"

    (loader.fake.path / str(RANK) / "fd" / "6").symlink_to("pipe:[6]")
    assert loader.looks(MOST_LOOKS + LEAST_LOOKS, syscall="other") == []


def test_of_a_million_descriptors_few_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user may open so many, and each look would take seconds. Those of others are none."""
    monkeypatch.setattr(worker_look, "MOST_DESCRIPTORS", 3)
    (tmp_path / "7" / "fd").mkdir(parents=True)
    for number in range(9):
        (tmp_path / "7" / "fd" / str(number)).symlink_to(f"pipe:[{number}]")
    pipes = Pipes(tmp_path, 7)

    assert sum(pipes.has(f"pipe:[{number}]", 0.0) for number in range(9)) == 3
    assert not Pipes(tmp_path, RANK).has("pipe:[5]", 0.0)


def test_state_of_workers_is_not_shown_while_every_look_fails(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be that of a time before, for ever."""
    monkeypatch.setattr(worker_states, "FIRST_INTERVAL_SECONDS", 0.001)
    loader.looks(wchan="hrtimer_nanosleep")
    assert loader.states.pid("llama", 3) == WORKER
    with monkeypatch.context() as patch:
        patch.setattr(WatchedWorker, "look", None)
        loader.states.start()
        wait_until(lambda: loader.failures.count > 0)
        gone = loader.states.pid("llama", 3), loader.states.of("llama", 3)
    wait_until(lambda: loader.states.pid("llama", 3) == WORKER)
    loader.states.stop()

    assert gone == (None, ())


def test_rank_without_workers_has_no_states() -> None:
    """The real /proc of this machine is understood; nor has one that has ended any."""
    found = WorkerStates(Path("/proc"))
    found.follow([LateRankProcess("llama", 3, os.getpid()), LateRankProcess("llama", 4, 2**22)])
    for _ in range(LEAST_LOOKS):
        found.look()

    assert found.of("llama", 3) == found.of("llama", 4) == ()


SLEEPS, LOCKED, RUNS, QUEUES = Wait(SLEEP), Wait(LOCK), Wait(RUNNING), Wait(CPU_QUEUE)
ON_A, ON_B = Wait(DISK, "/a (nfs)", "x"), Wait(DISK, "/b (fuse)")
ELSEWHERE_ON_A = Wait(DISK, "/a (nfs)", "y")


# A look a second, None is idle; for how much of the time it, and its other threads, run, and it
# queues; and what is told.
@pytest.mark.parametrize(
    ("waits", "runs", "others", "queues", "shares"),
    [
        # Few looks say nothing.
        ([], 0.0, 0.0, 0.0, {}),
        ([SLEEPS] * (LEAST_LOOKS - 1), 0.0, 0.0, 0.0, {}),
        # It waits for work; a little of anything else is not told.
        ([*[None] * 50, SLEEPS], 0.0, 0.0, 0.0, {}),
        # The clocks say how long it ran, and the looks divide the rest.
        ([SLEEPS, SLEEPS, None] * 6, 0.3, 0.0, 0.1, {SLEEPS: 0.4, RUNS: 0.3, QUEUES: 0.1}),
        # A decoder's threads keep the main thread waiting for a lock.
        ([LOCKED] * 10, 0.0, 0.7, 0.0, {RUNS: 0.7, LOCKED: 0.3}),
        # A mount is the answer; which of its links a worker waits for is not.
        ([ON_A, ELSEWHERE_ON_A, ON_B] * 4, 0, 0, 0, {ON_A._replace(link=""): 0.667, ON_B: 0.333}),
        # What it does now counts.
        ([*[SLEEPS] * MOST_LOOKS, *[LOCKED] * MOST_LOOKS], 0.0, 0.0, 0.0, {LOCKED: 1.0}),
        # Shares are at most 1, also if a clock is ahead of the time.
        ([None] * 9, 1.1, 0.0, 0.0, {RUNS: 1.0}),
    ],
)
def test_time_is_divided_by_clocks_and_looks(
    waits: list[Wait | None], runs: float, others: float, queues: float, shares: dict[Wait, float]
) -> None:
    window = WorkerWindow()
    for at, wait in enumerate(waits):
        clocks = at * runs, at * queues, at * (runs + others)
        window.add(WorkerLook(at, *clocks, wait, is_idle=wait is None))

    assert {wait: round(share, 3) for wait, share in window.shares().items()} == shares
