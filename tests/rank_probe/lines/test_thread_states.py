"""What a thread does or waits for is told right, for threads and processes that the test knows."""

import itertools
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rank_probe.guest.guard import failures
from rank_probe.lines import sampling
from rank_probe.lines.system_calls import (
    BLOCKED,
    CPU_QUEUE,
    DISK,
    LOCK,
    PIPE,
    RUNNING,
    SHARED,
    SLEEP,
    SOCKET,
    Reader,
    Wait,
    mounts,
    wait_of_channel,
)
from rank_probe.lines.thread_clocks import ThreadLook
from rank_probe.lines.training_thread import Shares, held, split
from tests.exporter.running import wait_until
from tests.rank_probe.lines.late_rank import Done, Work, late_rank, nothing, number_of_line

ENOUGH_SAMPLES = 60
on_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the numbers of calls are this architecture's"
)


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


def computes_in_python(is_over: Done) -> None:
    while not is_over():
        sum(range(1_000))  # busy


def sleeps(is_over: Done) -> None:
    while not is_over():
        time.sleep(0.03)  # asleep


def waits_for_an_event(is_over: Done) -> None:
    event = threading.Event()
    while not is_over():
        event.wait(0.03)


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("work", "state"),
    [
        (computes_in_python, "running"),
        (sleeps, "sleep"),
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


@pytest.mark.jobs
def test_first_answer_is_told_once_without_waiting_for_rare_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first page needs the line and the state; samples are rare once both are there."""
    monkeypatch.setattr(sampling, "INTERVAL_SECONDS", 60.0)
    told: list[int] = []
    with late_rank(sleeps, on_first=lambda: told.append(1)) as late:
        late.stacks.watch("data")
        wait_until(lambda: bool(told))
        assert (bool(late.stacks.lines()), bool(late.stacks.states())) == (True, True)
        assert late.stacks.samples <= sampling.FIRST_SAMPLES

    assert told == [1]


@pytest.mark.jobs
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


PAIR = "import socket; one, other = socket.socketpair();"
WATCHES = "import os, select; e = select.epoll(); one, two = os.pipe()[0], os.pipe()[0];"


def no() -> bool:
    return False


def waits_of(script: str, *arguments: str, cwd: Path | None = None) -> Wait:
    """Return what a process waits for that runs *script* and blocks at its end."""
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=cwd)
    deadline = time.monotonic() + 20
    try:
        while (wait := blocked(process.pid)) is None:
            assert time.monotonic() < deadline
        return wait
    finally:
        process.kill()
        process.wait()


def blocked(pid: int) -> Wait | None:
    """Return what it waits for once that stays the same for a while."""
    call = Path(f"/proc/{pid}/syscall")
    try:
        before = call.read_bytes()
        time.sleep(0.2)
        if call.read_bytes() != before:
            return None
        return Reader(f"/proc/{pid}").wait(before, no)
    except PermissionError:
        pytest.skip("this user may not see what processes wait for")


@on_x86
def test_running_thread_waits_for_nothing() -> None:
    """And one that may not be read is not said to sleep."""
    assert Reader().wait(b"running\n", no) is None
    assert wait_of_channel("0", is_in_disk_sleep=False) is None


@on_x86
@pytest.mark.parametrize(
    ("script", "state", "link"),
    [
        ("import threading as t; l = t.Lock(); l.acquire(); l.acquire()", LOCK, ""),
        # A worker that waits for a lock that processes share waits for work.
        ("import multiprocessing as t; l = t.Lock(); l.acquire(); l.acquire()", LOCK, SHARED),
        # The link finds it in another process, also if it is polled.
        ("import os; os.read(os.pipe()[0], 1)", PIPE, "pipe:["),
        ("import multiprocessing as m; a = m.Pipe(duplex=False); a[0].poll(60)", PIPE, "pipe:["),
        (f"{WATCHES} e.register(one); e.register(two); e.poll()", PIPE, "pipe:["),
        (f"{WATCHES} e.register(one); e.poll()", SLEEP, ""),
        ("import time; time.sleep(600)", SLEEP, ""),
        (f"{PAIR} one.recv(1)", SOCKET, ""),
        # Python polls, and the descriptor tells what.
        (f"{PAIR} one.settimeout(30); one.recv(1)", SOCKET, "socket:["),
        # There is no word of its own for it.
        ("import subprocess as s; s.Popen(['cat'], stdin=s.PIPE).wait()", BLOCKED, ""),
    ],
)
def test_wait_of_another_process_is_told_with_its_link(script: str, state: str, link: str) -> None:
    """Locks, pipes, sockets, sleep and a child that runs."""
    found = waits_of(script)

    assert found.state == state
    assert found.link.startswith(link)
    assert bool(found.link) == bool(link)


@on_x86
def test_path_is_that_of_the_process(tmp_path: Path) -> None:
    """A relative one is relative to where it is, which may be elsewhere than here."""
    os.mkfifo(tmp_path / "file")  # Opening it waits for the other end.
    relative = waits_of("open('file')", cwd=tmp_path)
    absolute = waits_of("import sys; open(sys.argv[1])", str(tmp_path / "file"))

    assert relative == absolute
    assert relative.state == DISK
    assert relative.mount.endswith(")")


@on_x86
def test_of_a_hundred_thousand_mounts_few_are_kept(tmp_path: Path) -> None:
    """Any user may make so many, and the exporter keeps those of each worker."""
    line = "36 35 98:0 / /mnt/{} rw,noatime shared:1 - tmpfs {} rw\n"
    (tmp_path / "mountinfo").write_text("".join(line.format(n, "x" * 99) for n in range(100_000)))

    found = mounts(f"{tmp_path}/mountinfo")
    assert ("/mnt/7", "/mnt/7 (tmpfs)") in found
    assert len(found) < 5_000


@on_x86
@pytest.mark.parametrize(
    ("call", "wait"),
    [
        # A worker that polls what cannot be read may wait for work.
        (b"7 0x0 0x1 0x1388 0x0 0x0 0x0 0x7ffc 0x7f01\n", Wait(BLOCKED, link=SHARED)),
        # A close that waits writes a file, as on NFS; which one cannot be seen any more.
        (b"3 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffc 0x7f01\n", Wait(DISK)),
    ],
)
def test_call_alone_says_what_it_waits_for(call: bytes, wait: Wait) -> None:
    """Where the descriptor or the memory cannot be read."""
    assert Reader().wait(call, no) == wait


MS = 1_000_000
BEFORE = ThreadLook(at=0, cpu=0, queue=0, own_queue=0, call=b"")
CALLS = {b"lock": Wait(LOCK), b"sleep": Wait(SLEEP), b"running": None}


def rounded(shares: Shares) -> dict[str, float]:
    return {wait.state: round(share, 3) for wait, share in shares}


@pytest.mark.parametrize(
    ("ran", "queued", "used", "call", "shares"),
    [
        # It used nearly all of the delay, wherever it was before and after.
        (80, 0, 80, b"lock", {RUNNING: 1.0}),
        (100, 0, 100, b"running", {RUNNING: 1.0}),
        (75, 0, 75, b"sleep", {RUNNING: 1.0}),
        (40, 40, 40, b"lock", {RUNNING: 0.5, CPU_QUEUE: 0.5}),
        # It ran for some of the time, and others for the rest.
        (20, 0, 100, b"lock", {RUNNING: 0.2, LOCK: 0.8}),
        # That the sampler waits does not make it wait.
        (0, 0, 100, b"sleep", {SLEEP: 1.0}),
        # A call of C waits for something and keeps the interpreter: nothing says for what.
        (0, 0, 1, b"lock", {BLOCKED: 1.0}),
    ],
)
def test_delay_of_the_sampler_is_divided_by_what_the_clocks_say(
    ran: int, queued: int, used: int, call: bytes, shares: dict[str, float]
) -> None:
    """It came 80 ms late, 100 ms after the last look; all threads *used* so much CPU."""
    first = ThreadLook(100 * MS, ran * MS, queued * MS, 0, call)

    assert rounded(held(BEFORE, first, 80 * MS, used * MS, CALLS.__getitem__)) == shares


@pytest.mark.parametrize(
    ("began_in", "last", "shares"),
    [
        (b"running", {"cpu": 100}, {RUNNING: 1.0}),
        (b"running", {"cpu": 300, "queue": 300}, {RUNNING: 1.0}),  # The clocks are read in turn.
        (b"running", {"cpu": 50, "queue": 50}, {RUNNING: 0.5, CPU_QUEUE: 0.5}),
        (b"running", {"cpu": 50, "call": b"sleep"}, {RUNNING: 0.5, SLEEP: 0.5}),
        (b"lock", {"cpu": 50, "call": b"lock"}, {RUNNING: 0.5, LOCK: 0.5}),
        # Handing over the interpreter takes that long, and so did the sampler's own wait for a CPU.
        (b"lock", {"cpu": 91, "call": b"lock"}, {RUNNING: 1.0}),
        (b"lock", {"cpu": 40, "own_queue": 20, "call": b"lock"}, {RUNNING: 0.5, LOCK: 0.5}),
        # A lock at the end is the interpreter, after what it waited for before.
        (b"sleep", {"call": b"lock"}, {SLEEP: 1.0}),
        # Ready at both looks: the kernel counts a wait for a CPU when it ends.
        (b"running", {"call": b"running"}, {CPU_QUEUE: 1.0}),
        (b"running", {"call": b"running", "is_on_cpu": True}, {BLOCKED: 1.0}),
    ],
)
def test_time_between_two_looks_is_divided(
    began_in: bytes, last: dict[str, Any], shares: dict[str, float]
) -> None:
    """The clocks tell what it ran and queued, and the calls what it was blocked in otherwise."""
    known: dict[str, Any] = {"at": 100, "cpu": 0, "queue": 0, "own_queue": 0}
    known |= {"call": b"running"} | last
    first = BEFORE._replace(call=began_in)

    assert rounded(split(first, ThreadLook(**known), CALLS.__getitem__)) == shares
