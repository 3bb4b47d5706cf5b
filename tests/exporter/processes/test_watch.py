"""Processes, ranks and loaders are looked at now and then; what one hides costs the others nothing.

`make bench-causes` plants faults in the workers of a real loader.
"""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from exporter.causes.model import ThreadState
from exporter.errors import Failures
from exporter.listeners.peer import Peer
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes import host_watch, worker_look, worker_states
from exporter.processes.background import WatchHangs
from exporter.processes.host_watch import Followed, HostWatch
from exporter.processes.process import Proc
from exporter.processes.watch import NOT_READABLE, NOT_THERE, ProcessWatch
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
from exporter.ranks.store import HeldRank
from rank_probe.lines.system_calls import CPU_QUEUE, DISK, LOCK, RUNNING, SLEEP, Reader, Wait
from tests.exporter.collectors.host import write
from tests.exporter.fake_proc import TORCHRUN, FakeProc, process, torchrun
from tests.exporter.node import NO_DRIVER, NO_SAMPLE, USER, Clock, FixedNvml, node
from tests.exporter.running import wait_until
from tests.exporter.snapshots import snapshot


def gpus_with(*pids: int) -> FixedNvml:
    """Two GPUs, the second of which cannot tell, the first with *pids*."""
    listed = tuple(GpuProcess(pid) for pid in pids)
    return node(GpuSample(0, up=True, processes=listed), GpuSample(1, up=True))


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_listed_processes_are_found_and_remembered(
    fake: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that are gone or not listed are not there. An environment is read at the first look.

    Reading one may have to wait for its process, so not even an NVML that does not answer, as while
    its worker is new or hangs, makes each be read again. Passwords stay where they are.
    """
    caplog.set_level(logging.DEBUG)
    for pid in (7, 8, 9):
        fake.add(pid, TORCHRUN | {"AWS_SECRET_ACCESS_KEY": "hunter2"})
    nvml = gpus_with(7, 8, 404)
    watch = ProcessWatch(nvml, Proc(fake.path))
    watch.look()
    assert set(watch.processes()) == {7, 8}
    fake.set_environment(7, {"RANK": "0"})
    watch.look()
    nvml.sample = None
    (fake.path / "8" / "stat").unlink()
    watch.look()

    assert set(watch.processes()) == {7}
    assert watch.processes()[7].environment == TORCHRUN
    assert "hunter2" not in caplog.text


# What each look finds: nothing, a process, or one of which the environment is hidden. A list that
# is a little old is usual, so three looks are waited for.
@pytest.mark.parametrize(
    ("nvml", "looks", "said"),
    [
        (gpus_with(7, 405), ["", "", "", "", "", "seen", "", "", "", ""], [NOT_THERE]),
        (gpus_with(7, 405), ["hidden"] * 10, [NOT_READABLE]),
        (gpus_with(7, 405), ["", "", "seen"] * 3, []),
        # Without a list of NVML's no process is read, whatever runs, and nothing is amiss.
        *((nvml, ["hidden"] * 5, []) for nvml in (NO_DRIVER, NO_SAMPLE, gpus_with())),
    ],
)
def test_exporter_that_sees_nothing_is_told_once(
    fake: FakeProc,
    caplog: pytest.LogCaptureFixture,
    nvml: FixedNvml,
    looks: list[str],
    said: list[str],
) -> None:
    """In a container without the node's process namespace, or without the right to read others."""
    watch = ProcessWatch(nvml, Proc(fake.path))
    for found in looks:
        if found:
            fake.add(7, TORCHRUN)
        if found == "hidden":
            fake.hide_environment(7)
        watch.look()
        if found:
            fake.end(7)

    assert caplog.messages == said


def test_look_that_does_not_return_is_an_error(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is old is not shown for new while reading /proc hangs."""
    clock = Clock()
    watch = HostWatch(fake.path, fake.path, clock=clock)
    monkeypatch.setattr(watch, "look", lambda: None)
    watch.start()
    clock.seconds += 59.0
    assert watch.latest() is None
    clock.seconds += 2.0
    with pytest.raises(WatchHangs, match="the cgroup of a rank hangs"):
        watch.latest()
    watch.stop()


def test_look_that_fails_is_not_the_last_one_and_no_hang(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One odd file costs the looks that meet it, and is what people read as the reason."""
    fake.add(7, TORCHRUN)
    monkeypatch.setattr("exporter.processes.watch.INTERVAL_SECONDS", 0.01)
    clock, failures = Clock(), Failures()
    watch = ProcessWatch(gpus_with(7), Proc(fake.path), clock, failures)
    with monkeypatch.context() as patch:
        patch.setattr(Proc, "online_cpus", mock.Mock(side_effect=RecursionError("odd file")))
        watch.start()
        wait_until(lambda: failures.count > 2)
        clock.seconds += 31
        with pytest.raises(WatchHangs, match=r"every look fails: RecursionError\('odd file'\)"):
            watch.processes()
    wait_until(lambda: "rankskew-process-watch" not in failures.last)
    found = watch.processes()
    watch.stop()

    assert set(found) == {7}
    assert caplog.messages == [
        "rankskew-process-watch failed and will be retried: RecursionError: odd file"
    ]


WHO = ("llama", "all", "0")
PID = 4711


def watching(fake: FakeProc, *ranks: Followed) -> HostWatch:
    watch = HostWatch(fake.path, fake.path.parent / "sys")
    watch.follow(ranks)
    return watch


def on_gpu(rank: int, pid: int, start: int = 1000) -> Followed:
    return Followed(("llama", "all", str(rank)), process(pid, start_ticks=start))


def cpu(watch: HostWatch) -> dict[str, int]:
    """Return the CPU ticks of each rank and its workers at a look."""
    watch.look()
    look = watch.latest()
    costs = {} if look is None else look.costs
    return {who[2]: c.used.cpu_ticks + c.used.workers_cpu_ticks for who, c in costs.items()}


def test_each_rank_has_its_own_workers(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that another one started is not that one's worker; one that has ended has no cost.

    The counters of a process that restarts are its own, which Prometheus knows as a reset. A rank
    with thousands of workers takes nothing from its neighbour, and what is left out is counted.
    """
    fake.use(10, cpu=1)
    fake.use(11, parent=10, cpu=2)
    fake.use(20, parent=10, cpu=4)
    fake.use(21, parent=20, cpu=8)
    watch = watching(fake, on_gpu(0, 10), on_gpu(1, 20), on_gpu(2, 30))
    assert cpu(watch) == {"0": 3, "1": 12}

    fake.use(20, start=2000, cpu=3)
    assert cpu(watch) == {"0": 3}
    watch.follow([on_gpu(0, 10), on_gpu(1, 20, start=2000)])
    assert cpu(watch) == {"0": 3, "1": 11}

    monkeypatch.setattr(host_watch, "MOST_PROCESSES", 4)
    for pid in range(100, 200):
        fake.use(pid, parent=10, cpu=1)
    assert cpu(watch) == {"0": 3, "1": 11}
    look = watch.latest()
    assert look is not None
    assert look.left_out == 100


@pytest.mark.parametrize(
    ("environment", "owner", "changes", "is_believed"),
    [
        (torchrun(0), USER, {}, True),
        (torchrun(0), Peer(1000, "other"), {}, False),
        (torchrun(1), USER, {}, False),
        (torchrun(0), USER, {"namespace_pids": f"{PID}\t7"}, False),
        # Over TCP only its launcher's variables prove it.
        (torchrun(0), None, {}, True),
        (torchrun(1), None, {}, False),
        (torchrun(0, TORCHELASTIC_RUN_ID="other"), None, {}, False),
    ],
)
def test_rank_without_a_gpu_is_found_by_the_id_that_it_reports(
    fake: FakeProc,
    environment: dict[str, str],
    owner: Peer | None,
    changes: dict[str, Any],
    is_believed: bool,
) -> None:
    """A job on CPUs has costs too. A process that may be another is not believed to be the rank:
    an id means something else in another namespace, and anyone can report anyone's.
    """
    fake.add(PID, environment, **changes)
    fake.use(PID, cpu=7)
    reported = Followed(WHO, held=HeldRank(snapshot(pid=PID), 0.0, owner))
    assert cpu(watching(fake, reported)) == ({"0": 7} if is_believed else {})

    fake.hide_environment(PID)
    assert cpu(watching(fake, reported)) == {}


def test_watch_hurries_when_a_rank_is_late(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: it does not wait for the end of its usual interval first."""
    monkeypatch.setattr(host_watch, "HURRIED_SECONDS", 0.01)
    monkeypatch.setattr(host_watch, "INTERVAL_SECONDS", 600.0)
    watch = watching(fake, on_gpu(0, 10))
    watch.start()
    wait_until(lambda: watch.latest() is not None)  # It has found nobody.
    fake.use(10)
    fake.use(20)
    try:
        watch.hurry(True)
        wait_until(lambda: pids(watch) == [10])
        watch.follow([on_gpu(0, 20)])
        wait_until(lambda: pids(watch) == [20])
    finally:
        watch.stop()


def pids(watch: HostWatch) -> list[int]:
    look = watch.latest()
    return [] if look is None else [cost.pid for cost in look.costs.values()]


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
RUNS_MOSTLY = ("running", LOADER, 0.6)


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
        ({"wchan": "0", "running": 0.6, "queue": 0.4}, [RUNS_MOSTLY, ("cpu_queue", "", 0.4)]),
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


SLEEPS, LOCKED, RUNS, QUEUES = Wait(SLEEP), Wait(LOCK), Wait(RUNNING), Wait(CPU_QUEUE)
ON_A, ON_B = Wait(DISK, "/a (nfs)", "x"), Wait(DISK, "/b (fuse)")
ELSEWHERE_ON_A = Wait(DISK, "/a (nfs)", "y")


# A look a second, None is idle; for how much of the time it, and its other threads, run, and it
# queues; and what is told.
@pytest.mark.parametrize(
    ("waits", "runs", "others", "queues", "shares"),
    [
        # Few looks say nothing.
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
