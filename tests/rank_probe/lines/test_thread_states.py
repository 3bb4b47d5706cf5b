"""What a late rank's thread does is told right, for threads that do what the test knows."""

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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.lines.stacks import Stacks
from tests.rank_probe.lines.test_stacks import number_of_line, until

ENOUGH_SAMPLES = 60

Done = Callable[[], bool]
Work = Callable[[Done], None]


@pytest.fixture(autouse=True)
def _no_failure() -> Iterator[None]:
    before = failures.count
    yield
    assert failures.count == before


def states_of(work: Work, wake: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    """Return the states of a thread that does *work*, which *wake* ends."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done.is_set,))
    thread.start()
    stacks = Stacks({}, lambda: thread.ident or 0, lambda: "data")
    stacks.watch("data")
    try:
        assert until(lambda: stacks.samples >= ENOUGH_SAMPLES, 20)
        return stacks.states()
    finally:
        stacks.watch(None)
        done.set()
        wake()
        thread.join()


class Truth:
    """What the kernel says of a thread between two moments, as shares of the time."""

    def __init__(self) -> None:
        self.running = self.queue = 0.0

    def of(self, work: Work) -> Work:
        """Return *work*, measured from its beginning to its end."""

        def measured(is_over: Done) -> None:
            schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
            began, queued = time.perf_counter(), schedstat.read_text().split()[1]
            ran = time.thread_time()
            work(is_over)
            elapsed = time.perf_counter() - began
            self.running = (time.thread_time() - ran) / elapsed
            self.queue = (int(schedstat.read_text().split()[1]) - int(queued)) / 1e9 / elapsed

        return measured


def shares(said: list[dict[str, Any]]) -> dict[str, float]:
    return {each["state"]: each["share"] for each in said}


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
    found = shares(states_of(work))

    queued = found.pop("cpu_queue", 0.0)
    assert found[state] + queued > 0.9
    assert found[state] == max(found.values())


def test_place_is_the_users_line() -> None:
    """The one that it is in while it is in that state."""
    (first, *_) = states_of(sleeps)

    assert (first["stage"], first["state"]) == ("data", "sleep")
    line = number_of_line(Path(__file__), "# asleep")
    assert first["place"].startswith("sleeps (")
    assert first["place"].endswith(f"test_thread_states.py:{line})")


def test_queue_that_stays_empty_is_a_lock() -> None:
    """As is every lock of Python's."""
    items: queue.Queue[int] = queue.Queue()
    found = shares(states_of(lambda is_over: void(items.get()), wake=lambda: items.put(1)))

    assert found["lock"] > 0.9


def void(_: object) -> None:
    """Drop it."""


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_silent_peer_is_a_socket(timeout: float | None) -> None:
    """With a timeout Python polls, and the descriptor tells what."""
    one, other = socket.socketpair()
    one.settimeout(timeout)
    found = shares(states_of(lambda is_over: void(one.recv(1)), wake=lambda: other.close()))
    one.close()

    assert found["socket"] > 0.9


def test_empty_pipe_is_a_pipe() -> None:
    """Also one that is polled, as a loader's from its workers."""
    receiving, sending = os.pipe()
    found = shares(states_of(lambda _: void(os.read(receiving, 1)), lambda: os.close(sending)))
    os.close(receiving)
    assert found["pipe"] > 0.9

    into, out = multiprocessing.Pipe(duplex=False)
    found = shares(states_of(lambda _: void(into.poll(30)), lambda: out.send(1)))
    assert found["pipe"] > 0.9


def test_child_that_runs_is_something_else() -> None:
    """There is no word of its own for it."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = shares(states_of(lambda _: void(child.wait()), child.kill))
    assert child.stdin is not None
    child.stdin.close()

    assert found["blocked"] > 0.9


def test_other_thread_of_python_is_a_lock() -> None:
    """While another thread of the user's has the interpreter, this one waits for it."""
    over = threading.Event()
    hogs = [threading.Thread(target=computes_in_python, args=(over.is_set,)) for _ in range(3)]
    for each in hogs:
        each.start()
    truth = Truth()
    try:
        found = shares(states_of(truth.of(computes_in_python)))
    finally:
        over.set()
        for each in hogs:
            each.join()

    assert found["lock"] > 0.2
    assert found["lock"] == pytest.approx(1 - truth.running - truth.queue, abs=0.2)
    assert found["running"] == pytest.approx(truth.running, abs=0.2)


def test_half_of_a_cpu_is_a_queue_for_the_other_half() -> None:
    """Two busy processes on one CPU."""
    cpus = os.sched_getaffinity(0)
    cpu = {min(cpus)}
    command = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", command, str(min(cpus))])

    def works(is_over: Done) -> None:
        os.sched_setaffinity(0, cpu)  # Of this thread only.
        computes_in_torch(is_over)

    truth = Truth()
    try:
        found = shares(states_of(truth.of(works)))
    finally:
        other.kill()
        other.wait()

    assert found["cpu_queue"] > 0.25
    assert found["cpu_queue"] == pytest.approx(truth.queue, abs=0.2)
    assert found["running"] == pytest.approx(truth.running, abs=0.2)


def test_half_of_the_time_asleep_is_half() -> None:
    """Time counts, not what is seen at the moments of the samples."""

    def does_both(is_over: Done) -> None:
        while not is_over():
            until_time = time.thread_time() + 0.03
            while time.thread_time() < until_time:
                pass
            time.sleep(0.03)

    truth = Truth()
    found = shares(states_of(truth.of(does_both)))

    assert found["sleep"] == pytest.approx(1 - truth.running - truth.queue, abs=0.2)
    assert found["running"] == pytest.approx(truth.running, abs=0.2)


def test_call_that_keeps_the_interpreter_counts_for_as_long_as_it_takes() -> None:
    """The sampler cannot look meanwhile, so it looks less often than at a sleep."""

    def does_both(is_over: Done) -> None:
        while not is_over():
            sum(range(8_000_000))  # One call of C.
            time.sleep(0.1)

    truth = Truth()
    found = shares(states_of(truth.of(does_both)))

    assert truth.running > 0.15
    assert found["running"] == pytest.approx(truth.running, abs=0.15)
    assert found["sleep"] == pytest.approx(1 - truth.running - truth.queue, abs=0.15)


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


def test_nothing_is_told_of_a_healthy_rank_or_if_it_is_turned_off() -> None:
    """As for the lines."""
    stacks = Stacks({"RANK_PROBE_STACKS": "0"}, threading.get_ident, lambda: "data")
    stacks.watch("data")
    assert stacks.states() == []
    assert Stacks({}, threading.get_ident, lambda: "data").states() == []


@contextmanager
def watched(stage: Callable[[], str], on_first: Callable[[], None]) -> Iterator[Stacks]:
    """Watch a thread that sleeps, in the stage that *stage* says."""
    done = threading.Event()
    thread = threading.Thread(target=sleeps, args=(done.is_set,))
    thread.start()
    stacks = Stacks({}, lambda: thread.ident or 0, stage, on_first=on_first)
    stacks.watch("data")
    try:
        yield stacks
    finally:
        stacks.watch(None)
        done.set()
        thread.join()


def test_first_answer_is_there_within_two_seconds_and_is_told_once() -> None:
    """The first page needs the line and the state, and the next push would come too late."""
    told: list[float] = []
    began = time.monotonic()
    with watched(lambda: "data", lambda: told.append(time.monotonic() - began)) as stacks:
        assert until(lambda: bool(told))
        assert (bool(stacks.lines()), bool(stacks.states())) == (True, True)
        time.sleep(0.2)

    assert len(told) == 1
    assert told[0] < 2


def test_waiting_for_others_is_no_state() -> None:
    """And what began in another stage is not split."""
    stages = iter(["data", "sync"] * 1_000)
    with watched(lambda: next(stages), lambda: None) as stacks:
        time.sleep(0.5)
        assert (stacks.samples, stacks.states()) == (0, [])
    stages = iter(["forward", "data"] * 1_000)
    with watched(lambda: next(stages), lambda: None) as stacks:
        assert until(lambda: bool(stacks.lines()))
        assert stacks.states() == []
