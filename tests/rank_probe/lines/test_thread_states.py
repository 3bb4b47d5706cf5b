"""What a late rank's thread does is told right, for threads that do what the test knows."""

import itertools
import mmap
import multiprocessing
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.lines import sampling
from tests.exporter.running import wait_until
from tests.rank_probe.lines.late_rank import Done, Work, late_rank, nothing, number_of_line

pytestmark = pytest.mark.jobs

ENOUGH_SAMPLES = 60


@pytest.fixture(autouse=True)
def _no_failure() -> Iterator[None]:
    before = failures.count
    yield
    assert failures.count == before


def states_of(work: Work, wake: Callable[[], object] = nothing) -> list[dict[str, Any]]:
    """Return the states of a thread that does *work*, which *wake* ends."""
    with late_rank(work, wake) as late:
        late.stacks.watch("data")
        late.takes(ENOUGH_SAMPLES)
        return late.stacks.states()


def shares_of(work: Work, wake: Callable[[], object] = nothing) -> dict[str, float]:
    return {each["state"]: each["share"] for each in states_of(work, wake)}


class Truth:
    """What the kernel says of a thread that does *work*, as shares of the time that it takes."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.running = self.queue = 0.0

    def __call__(self, is_over: Done) -> None:
        schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        began, queued = time.perf_counter(), schedstat.read_text().split()[1]
        ran = time.thread_time()
        self._work(is_over)
        elapsed = time.perf_counter() - began
        self.running = (time.thread_time() - ran) / elapsed
        self.queue = (int(schedstat.read_text().split()[1]) - int(queued)) / 1e9 / elapsed


def computes_in_python(is_over: Done) -> None:
    while not is_over():
        sum(range(1_000))  # busy


def computes_in_torch(is_over: Done) -> None:
    torch.set_num_threads(1)
    matrix = torch.rand(700, 700)
    while not is_over():
        torch.mm(matrix, matrix)


def sleeps(is_over: Done) -> None:
    while not is_over():
        time.sleep(0.03)  # asleep


def selects_nothing(is_over: Done) -> None:
    while not is_over():
        select.select([], [], [], 0.03)


def waits_for_an_event(is_over: Done) -> None:
    event = threading.Event()
    while not is_over():
        event.wait(0.03)


@pytest.mark.parametrize(
    ("work", "state"),
    [
        (computes_in_python, "running"),
        (computes_in_torch, "running"),
        (sleeps, "sleep"),
        (selects_nothing, "sleep"),
        (waits_for_an_event, "lock"),
    ],
)
def test_state_of_a_thread_that_does_one_thing(work: Work, state: str) -> None:
    """It is in that state nearly always; a CPU that others use too may take its part."""
    states = states_of(work)
    found = {each["state"]: each["share"] for each in states}
    queued = found.pop("cpu_queue", 0.0)

    assert found[state] + queued > 0.9
    assert found[state] == max(found.values())
    if work is sleeps:  # The place is the user's line that it is in meanwhile.
        line = number_of_line(__file__, "# asleep")
        assert states[0]["stage"] == "data"
        assert states[0]["place"].startswith("sleeps (")
        assert states[0]["place"].endswith(f"test_thread_states.py:{line})")


@pytest.mark.parametrize(
    ("what", "state"),
    [
        ("queue", "lock"),  # As is every lock of Python's.
        ("socket", "socket"),
        ("socket with a timeout", "socket"),  # Python polls, and the descriptor tells what.
        ("pipe", "pipe"),
        ("pipe that is polled", "pipe"),  # As a loader's from its workers.
        ("child", "blocked"),  # There is no word of its own for it.
    ],
)
def test_wait_for_what_does_not_come(what: str, state: str) -> None:
    """A queue that stays empty, a silent peer, an empty pipe, a child that runs."""
    items: queue.Queue[int] = queue.Queue()
    one, other = socket.socketpair()
    one.settimeout(30.0 if "timeout" in what else None)
    receiving, sending = os.pipe()
    into, out = multiprocessing.Pipe(duplex=False)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    waits: dict[str, tuple[Work, Callable[[], object]]] = {
        "queue": (lambda _: items.get(), lambda: items.put(1)),
        "socket": (lambda _: one.recv(1), lambda: other.send(b"x")),
        "socket with a timeout": (lambda _: one.recv(1), lambda: other.send(b"x")),
        "pipe": (lambda _: os.read(receiving, 1), lambda: os.write(sending, b"x")),
        "pipe that is polled": (lambda _: into.poll(30), lambda: out.send(1)),
        "child": (lambda _: child.wait(), child.kill),
    }
    with ExitStack() as stack:
        for each in (one, other, into, out, child.stdin):
            stack.callback(each.close)  # type: ignore[union-attr]
        for descriptor in (receiving, sending):
            stack.callback(os.close, descriptor)
        stack.callback(child.wait)
        stack.callback(child.kill)
        assert shares_of(*waits[what])[state] > 0.9


def test_other_thread_of_python_is_a_lock() -> None:
    """While another thread of the user's has the interpreter, this one waits for it."""
    over = threading.Event()
    hogs = [threading.Thread(target=computes_in_python, args=(over.is_set,)) for _ in range(3)]
    for each in hogs:
        each.start()
    truth = Truth(computes_in_python)
    try:
        found = shares_of(truth)
    finally:
        over.set()
        for each in hogs:
            each.join()

    assert found["lock"] > 0.2
    assert found["lock"] == pytest.approx(1 - truth.running - truth.queue, abs=0.2)
    assert found["running"] == pytest.approx(truth.running, abs=0.2)


def test_half_of_a_cpu_is_a_queue_for_the_other_half() -> None:
    """Two busy processes on one CPU."""
    cpu = min(os.sched_getaffinity(0))
    command = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", command, str(cpu)])

    def works(is_over: Done) -> None:
        os.sched_setaffinity(0, {cpu})  # Of this thread only.
        computes_in_torch(is_over)

    truth = Truth(works)
    try:
        found = shares_of(truth)
    finally:
        other.kill()
        other.wait()

    assert found["cpu_queue"] > 0.25
    assert found["cpu_queue"] == pytest.approx(truth.queue, abs=0.2)
    assert found["running"] == pytest.approx(truth.running, abs=0.2)


def runs_for_as_long_as_it_sleeps(is_over: Done) -> None:
    while not is_over():
        until_time = time.thread_time() + 0.03
        while time.thread_time() < until_time:
            pass
        time.sleep(0.03)


def keeps_the_interpreter_and_sleeps(is_over: Done) -> None:
    """Run one call of C: the sampler cannot look meanwhile, so it looks less often."""
    while not is_over():
        sum(range(8_000_000))
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("work", "tolerance"),
    [(runs_for_as_long_as_it_sleeps, 0.2), (keeps_the_interpreter_and_sleeps, 0.15)],
)
def test_share_is_that_of_the_time(work: Work, tolerance: float) -> None:
    """Time counts, not what is seen at the moments of the samples."""
    truth = Truth(work)
    found = shares_of(truth)

    assert truth.running > 0.15
    assert found["sleep"] == pytest.approx(1 - truth.running - truth.queue, abs=tolerance)
    assert found["running"] == pytest.approx(truth.running, abs=tolerance)


def test_slow_disk_is_told_with_its_mount(tmp_path: Path) -> None:
    """A file that is read past the cache: the thread waits for the device."""
    file = tmp_path / "file"
    file.write_bytes(os.urandom(1 << 22))
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system cannot read past the cache")
    page = mmap.mmap(-1, 1 << 22)

    def reads(is_over: Done) -> None:
        while not is_over():
            os.preadv(descriptor, [page], 0)

    found = states_of(reads)
    os.close(descriptor)
    disk = next(each for each in found if each["state"] == "disk")

    assert disk["share"] > 0.1
    assert disk["place"].startswith("/")
    assert disk["place"].endswith(")")


def test_first_answer_is_there_within_two_seconds_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first page needs the line and the state; samples are rare once both are there."""
    monkeypatch.setattr(sampling, "INTERVAL_SECONDS", 60.0)
    told: list[float] = []
    began = time.monotonic()
    with late_rank(sleeps, on_first=lambda: told.append(time.monotonic() - began)) as late:
        late.stacks.watch("data")
        wait_until(lambda: bool(told))
        assert (bool(late.stacks.lines()), bool(late.stacks.states())) == (True, True)
        taken = late.stacks.samples
        time.sleep(0.2)
        assert late.stacks.samples == taken

    assert len(told) == 1
    assert told[0] < 2


def test_waiting_for_others_is_no_state() -> None:
    """And what began in another stage is not split."""
    with late_rank(sleeps) as late:
        late.stages = itertools.cycle(["data", "sync"])
        late.stacks.watch("data")
        time.sleep(0.5)
        assert (late.stacks.samples, late.stacks.states()) == (0, [])
    with late_rank(sleeps) as late:
        late.stages = itertools.cycle(["forward", "data"])
        late.stacks.watch("data")
        wait_until(lambda: bool(late.stacks.lines()))
        assert late.stacks.states() == []
