"""A late rank's thread is sampled while it is late: its lines, what it waits for, their shares."""

import itertools
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rank_probe.guest.guard import failures
from rank_probe.lines import sampling, system_calls, thread_clocks, training_thread
from rank_probe.lines.loop_frames import Spot, stack_of
from rank_probe.lines.sample_window import (
    LEAST_SAMPLES,
    WHOLE,
    LineShare,
    SampleWindow,
    Spent,
    StackSample,
    StateShare,
)
from rank_probe.lines.stacks import Stacks
from rank_probe.lines.system_calls import POLLED, PYTHON, SHARED, Reader, Wait
from rank_probe.lines.thread_clocks import Other, OtherThreads, ThreadLook, WatchedThread
from rank_probe.lines.training_thread import Shares, TorchCalls, at_last, engine_thread, held, split
from rank_probe.lines.user_code import CodeLine
from rank_probe.wire.snapshot import THREAD_STATES
from rank_probe.wire.stages import FORWARD, STAGES
from tests.exporter.running import wait_until
from tests.rank_probe.fakes import number_of_line

RUNNING, CPU_QUEUE, DISK, SLEEP, LOCK, SOCKET, PIPE, GPU, BLOCKED = THREAD_STATES
MS = 1_000_000
Done = Callable[[], bool]
Work = Callable[[Done], object]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sample often, so that a test takes milliseconds, and expect no failure."""
    monkeypatch.setattr(sampling, "INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(sampling, "LOOK_SECONDS", 0.001)
    yield
    assert failures.count == 0
    wait_until(lambda: not sampling_threads())


def sampling_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "rank_probe_stacks"]


class LateRank:
    """A rank whose thread does *work* until it is done, in the next of *stages* at each look."""

    def __init__(self, work: Work, on_first: Callable[[], None], **environment: str) -> None:
        self.stages: Iterator[str] = itertools.repeat("data")
        self.spent: Iterator[list[int]] = itertools.repeat([])
        self.looks = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=work, args=(self.done.is_set,))
        self.thread.start()
        self.stacks = Stacks(
            environment,
            lambda: self.thread.ident or 0,
            self._stage,
            lambda: next(self.spent),
            on_first=on_first,
        )
        said = self.stacks.snapshot_fields
        self.lines: Callable[[], Any] = lambda: said().get("late_lines", [])
        self.states: Callable[[], Any] = lambda: said().get("thread_states", [])

    def _stage(self) -> str:
        self.looks += 1
        return next(self.stages)

    def is_looked_at(self, looks: int) -> None:
        """Wait for so many more looks, of which two are a sample."""
        until = self.looks + looks
        wait_until(lambda: self.looks >= until)


@contextmanager
def late_rank(
    work: Work, on_first: Callable[[], None] = lambda: None, **environment: str
) -> Iterator[LateRank]:
    """Run a rank that does *work*."""
    made = LateRank(work, on_first, **environment)
    try:
        yield made
    finally:
        made.stacks.watch(None)
        made.done.set()
        made.thread.join()


def corpus(is_over: Done) -> Iterator[int]:
    """Be slow in one line."""
    while not is_over():
        time.sleep(0.002)  # slow
        yield 1


def reads(is_over: Done) -> None:
    for _ in corpus(is_over):
        pass


def waits_in_the_library(is_over: Done) -> None:
    condition = threading.Condition()
    while not is_over():
        with condition:
            condition.wait(0.002)  # library


@pytest.mark.parametrize(
    ("work", "function", "comment", "state", "is_fetching"),
    [
        (reads, "corpus", "# slow", SLEEP, True),
        # Below the user's line all frames are Python's own.
        (waits_in_the_library, "waits_in_the_library", "# library", LOCK, False),
    ],
)
def test_slow_line_is_named_first(
    work: Work, function: str, comment: str, state: str, is_fetching: bool
) -> None:
    """With its function, file and stage, what it waits for there, and whether the loop fetches."""
    with late_rank(work) as late:
        late.stacks.watch("data")
        late.is_looked_at(200)
        first, waits = late.lines()[0], late.states()
        assert not late.stacks.mostly_fetches("forward")
        assert late.stacks.mostly_fetches("data") is is_fetching

    assert first["stage"] == waits[0]["stage"] == "data"
    assert first["place"].startswith(f"{function} (")
    assert first["place"].endswith(f"test_stacks.py:{number_of_line(__file__, comment)})")
    assert state in {each["state"] for each in waits if each["place"] == first["place"]}


def counts(is_over: Done) -> None:
    while not is_over():
        sum(range(100))


def test_thread_that_has_the_interpreter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its line, within what a place may have."""
    monkeypatch.setattr(training_thread, "HAS_IT", 0.0)  # However little of a CPU this test gets.
    rows = [{str(each): float(each)} for each in range(50_000)]

    def saves() -> None:
        while not late.done.is_set():
            pickle.dumps(rows)  # saved

    with late_rank(counts) as late:
        saver, watched = threading.Thread(target=saves), WatchedThread(late.thread.native_id or 0)
        wait_until(lambda: watched.wait(watched.begin().call) == Wait(LOCK, link=PYTHON))
        watched.close()
        saver.name = "x" * 99
        saver.start()
        late.stacks.watch("data")
        held = rf"thread `…x+` at \S+\.saves \(\S+:{number_of_line(__file__, '# saved')}\)"
        wait_until(
            lambda: any(
                re.fullmatch(held, at := each["place"]) and len(at) == 128 for each in late.states()
            )
        )
    saver.join()


def test_who_runs_without_the_interpreter_does_not_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the others, the one that ran longest is meant, also if it has just begun."""
    a, b, c = (threading.Thread(name=each) for each in "abc")
    looks = iter([{a: 5, b: 5}, {a: 99, b: 50, c: 46}, {a: 10**18, b: 51, c: 46}])
    monkeypatch.setattr(thread_clocks, "_clocks", lambda _: next(looks))
    others = OtherThreads(lambda thread: thread.name)
    others.look(0)
    others.look(0)

    assert others.busiest() == Other(46, "c")


def test_sampling_lasts_as_long_as_the_lateness() -> None:
    """One thread, for all pushes, which goes with its lines; a new lateness starts anew.

    With RANK_PROBE_STACKS=0 there is no thread, sample or line.
    """
    with late_rank(reads, RANK_PROBE_STACKS="0") as off:
        off.stacks.watch("data")
        assert sampling_threads() == []
        assert off.stacks.snapshot_fields() == {}
        assert not off.stacks.mostly_fetches("data")
    with late_rank(reads) as late:
        for _ in range(5):
            late.stacks.watch("data")
        assert len(sampling_threads()) == 1
        late.is_looked_at(100)
        late.stacks.watch(None)
        assert late.lines() == []
        wait_until(lambda: not sampling_threads())
        taken = late.stacks.samples
        late.stacks.watch("data")
        assert late.lines() == []
        wait_until(lambda: late.stacks.samples > taken)


def test_first_answer_is_told_once_without_waiting_for_rare_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first page needs the line and the state; samples are rare once both are there."""
    pauses, told, over = list[float](), list[int](), threading.Event()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if seconds < 1:
            time.sleep(seconds)
        else:
            over.wait()

    monkeypatch.setattr(sampling, "INTERVAL_SECONDS", 60.0)
    clock = SimpleNamespace(sleep=sleep, perf_counter_ns=time.perf_counter_ns)
    monkeypatch.setattr(sampling, "time", clock)
    with late_rank(reads, on_first=lambda: told.append(1)) as late:
        late.stacks.watch("data")
        wait_until(lambda: pauses[-1:] > [1])
        assert (bool(late.lines()), bool(late.states())) == (True, True)
        late.stacks.stop()
        over.set()

    assert told == [1]
    assert late.stacks.samples <= sampling.FIRST_SAMPLES


def test_waiting_for_others_is_no_state() -> None:
    """But of a rank that is stuck; and what began in another stage says what it did last."""
    with late_rank(reads) as late:
        late.stages = itertools.cycle(["data", "sync"])
        late.stacks.watch("data")
        late.is_looked_at(100)
        assert (late.stacks.samples, late.states()) == (0, [])
        late.stacks.watch("sync")  # It is stuck there.
        wait_until(lambda: late.stacks.samples > 0)
        late.stacks.watch("data")
        late.stages = itertools.cycle(["forward", "data"])
        wait_until(lambda: bool(late.states()))


def held_up() -> SimpleNamespace:
    """Look at a thread whose calls keep the interpreter: looks come 6 ms late, and take 5 ms.

    For 2 of these the sampler waits for a CPU.
    """
    return SimpleNamespace(
        begin=lambda _: ThreadLook(50 * MS, 0, 0, 0, b""),
        end=lambda: ThreadLook(55 * MS, 0, 0, 2 * MS, b""),
        delay=lambda *_: 6 * MS,
        held=lambda *_: (StateShare(RUNNING, "", None, WHOLE),),
        parts=lambda *_: (StateShare(SLEEP, "", None, WHOLE),),
        close=lambda: None,
    )


def test_look_that_was_held_up_stands_for_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are fewer of them: 6 ms for one of 2 ms count as three more, and 2 ms as one."""
    monkeypatch.setattr(sampling, "JITTER", 0.0)
    monkeypatch.setattr(sampling, "TrainingThread", lambda _: held_up())
    with late_rank(reads) as late:
        late.stacks.watch("data")
        late.is_looked_at(400)
        shares = {each["state"]: each["share"] for each in late.states()}

    assert shares == pytest.approx({RUNNING: 0.6, SLEEP: 0.4}, abs=0.01)

    with late_rank(reads) as late:  # It has gone on to `data` since: it was held up before that.
        grown = itertools.count(0, 6 * MS)
        late.spent = ([0] * FORWARD + [each] + [1] * (len(STAGES) - FORWARD - 1) for each in grown)
        late.stacks.watch("forward")
        late.is_looked_at(400)
        told = {(each["stage"], each["state"]): each["share"] for each in late.states()}

    assert told == {("forward", RUNNING): 1.0, ("data", SLEEP): 1.0}


READ, PARSE, LOSS = (CodeLine(name, "/a.py", n) for n, name in enumerate(("read", "parse", "loss")))


def window(*samples: tuple[str, CodeLine | None, int], most: int = 6_000) -> SampleWindow:
    """Return a window after so many samples of each stage and line."""
    made = SampleWindow(most)
    for stage, line, count in samples:
        add(made, stage, line, count)
    return made


def add(to: SampleWindow, stage: str, line: CodeLine | None, count: int) -> None:
    for _ in range(count):
        to.add(StackSample(stage, line, is_fetching=line is READ))


def test_shares_are_of_the_lines_own_stage() -> None:
    """The late stage comes first, even if another has more samples; then the most frequent.

    Samples without a line of the user's make the others smaller; few samples say nothing, and no
    page names a line with 0 % of a stage.
    """
    seen = window(("forward", LOSS, 90), ("data", READ, 30), ("data", PARSE, 10))
    assert seen.lines("data", 5) == [
        LineShare("data", READ, 0.75),
        LineShare("data", PARSE, 0.25),
        LineShare("forward", LOSS, 1.0),
    ]
    assert seen.lines("data", 1) == [LineShare("data", READ, 0.75)]
    assert seen.iterating_share("data") == 0.75
    add(seen, "data", None, 20)
    assert seen.lines("data", 1) == [LineShare("data", READ, 0.5)]

    # One sample says little, however long it stands for. Of what it did there may be no word.
    sleeps = StackSample("data", READ, False, 9 * WHOLE, (StateShare(SLEEP, "", READ, 9 * WHOLE),))
    rare = window(("data", PARSE, 1))
    rare.add(sleeps)
    rare.add(sleeps)
    assert not rare.has_answer("data")
    add(rare, "data", PARSE, 5)
    assert rare.has_answer("data")
    assert rare.states("data", 5) == [Spent("data", SLEEP, 0.75, READ)]

    few = window(("data", READ, LEAST_SAMPLES - 1))
    assert few.lines("data", 5) == []
    assert few.iterating_share("data") is few.iterating_share("forward") is None
    add(few, "data", READ, 280)
    add(few, "data", PARSE, 1)
    assert [each.line for each in few.lines("data", 5)] == [READ]


def test_only_the_latest_samples_count_and_the_first_line_does_not_flap() -> None:
    """What a rank did long ago takes no memory. Two lines of about equal cost take no turns."""
    seen = window(("data", READ, 500), ("data", PARSE, 100), most=100)
    assert seen.lines("data", 5) == [LineShare("data", PARSE, 1.0)]
    assert seen.iterating_share("data") == 0.0

    # What was sampled before it was known that batches are read in `other` keeps its line.
    seen = window(("other", READ, 60), ("other", LOSS, 20), ("data", READ, 20))
    seen.rename_fetches("other", "data")
    assert seen.lines("data", 5) == [LineShare("data", READ, 1.0), LineShare("other", LOSS, 1.0)]
    assert (seen.iterating_share("data"), seen.iterating_share("other")) == (1.0, 0.0)

    seen = window(("data", READ, 50), ("data", PARSE, 45))
    for first in (READ, READ, PARSE):  # Each first line is a new series.
        assert seen.lines("data", 5)[0].line == first
        add(seen, "data", PARSE, 10)


MOUNTS = (
    "22 1 98:0 / / rw shared:1 - ext4 /dev/sda1 rw\n"
    "23 22 0:40 / /data rw,noatime shared:2 - nfs4 server:/data rw\n"
    "24 23 0:41 / /data/two\\040words rw - fuse.s3 bucket rw\n"
)
EPOLL = "anon_inode:[eventpoll]"
LINKS = ("pipe:[4711]", "socket:[4712]", "/data/users/ann/corpus.bin", "/dev/nvidia0", EPOLL, EPOLL)
DESCRIPTORS = dict(enumerate((*LINKS, "/dev/null"), 3))
WATCHED = {7: (4,), 8: (4, 3)}  # by the epolls
# What lies in the memory, and from where on.
MEMORY = {
    0x40: POLLED.pack(3, 1, 0),
    0x60: (0b1000).to_bytes(8, "little"),  # the set of a select
    0x80: b"two words/x\0",
    0xA0: b"/data/two words/x\0",
}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Reads a process as /proc showed it, on x86."""
    monkeypatch.setattr(system_calls, "_CALLS", system_calls._X86_64)
    for folder in ("fd", "fdinfo"):
        (tmp_path / folder).mkdir()
    for number, link in DESCRIPTORS.items():
        (tmp_path / "fd" / str(number)).symlink_to(link)
    for number, watched in WATCHED.items():
        lines = [f"tfd: {each:8} events:       19 data: 7f" for each in watched]
        (tmp_path / "fdinfo" / str(number)).write_text("\n".join(["flags:\t02", *lines, ""]))
    (tmp_path / "cwd").symlink_to("/data")
    (tmp_path / "mountinfo").write_text(MOUNTS)
    with (tmp_path / "mem").open("wb") as memory:
        for pointer, content in MEMORY.items():
            memory.seek(pointer)
            memory.write(content)
    return Reader(str(tmp_path), range(0xE0, 0xE8))


@pytest.mark.parametrize(
    ("call", "wait"),
    [
        ("running", None),
        ("-1 0x7ffc 0x7f01", Wait(BLOCKED)),  # in no call
        ("230 0x1 0x1 0x7f01 0x0", Wait(SLEEP)),  # clock_nanosleep
        ("202 0x7f 0x189 0x0 0x0", Wait(LOCK)),  # futex
        ("202 0xe0 0x189 0x0 0x0", Wait(LOCK, link=PYTHON)),
        # A worker that waits for a lock that processes share waits for work.
        ("202 0x7f 0x109 0x0 0x0", Wait(LOCK, link=SHARED)),
        ("73 0x9 0x2", Wait(LOCK)),  # flock
        ("45 0x4 0x7f 0x1", Wait(SOCKET)),  # recvfrom
        # The link finds a pipe or socket in another process, also if it is polled.
        ("0 0x3 0x7f 0x1", Wait(PIPE, link="pipe:[4711]")),  # read
        ("0 0x4 0x7f 0x1", Wait(SOCKET, link="socket:[4712]")),
        ("0 0x5 0x7f 0x1", Wait(DISK, "/data (nfs4)")),
        ("16 0x6 0x7f 0x1", Wait(GPU)),  # ioctl
        ("0 0x9 0x7f 0x1", Wait(BLOCKED)),
        ("0 0x63 0x7f 0x1", Wait(BLOCKED)),  # a descriptor that is gone
        # A close that waits writes a file, as on NFS; which one cannot be seen any more.
        ("3 0x5 0x0 0x0", Wait(DISK)),
        # Of a path only the mount is told: it has the name of a user.
        ("2 0xa0 0x0 0x0", Wait(DISK, "/data/two words (fuse.s3)")),  # open
        # A relative one is relative to where the process is.
        ("257 0xffffff9c 0x80 0x0", Wait(DISK, "/data/two words (fuse.s3)")),  # openat
        ("2 0xfffff000 0x0 0x0", Wait(DISK)),
        # Python polls, and the descriptor tells what for.
        ("7 0x40 0x1 0xea60", Wait(PIPE, link="pipe:[4711]")),
        ("7 0x0 0x0 0xea60", Wait(SLEEP)),
        # A worker that polls what cannot be read may wait for work.
        ("7 0xfffff000 0x1 0x1388", Wait(BLOCKED, link=SHARED)),
        ("270 0x4 0x60 0x0 0x0", Wait(PIPE, link="pipe:[4711]")),  # select
        ("270 0x8 0x5f 0xfffff000 0x0", Wait(SLEEP)),  # Of the first set one byte counts.
        ("270 0x2000 0x60 0x0 0x0", Wait(BLOCKED, link=SHARED)),
        # An event loop that only sleeps watches the socket that wakes it up.
        ("232 0x7 0x7f 0x1", Wait(SLEEP)),
        ("232 0x8 0x7f 0x1", Wait(PIPE, link="pipe:[4711]")),
        ("61 0x7f 0x0 0x0", Wait(BLOCKED)),  # wait4, for a child: there is no word of its own
    ],
)
def test_call_says_what_a_thread_waits_for(reader: Reader, call: str, wait: Wait | None) -> None:
    """With the mount, the pipe or the socket; a thread in disk sleep waits for a disk at least."""
    assert reader.wait(f"{call}\n".encode(), lambda: False) == wait
    asleep = Wait(DISK) if wait is not None and wait.state == BLOCKED else wait
    assert reader.wait(f"{call}\n".encode(), lambda: True) == asleep


def frame(name: str, file: str) -> Spot:
    """Return where a thread is that runs torch's function *name*."""
    code = compile(f"def {name}(): pass", f"/venv/torch/{file}", "exec").co_consts[0]
    return Spot(code, 0)


def test_torch_waits_for_the_gpu_or_for_workers(tmp_path: Path) -> None:
    """A call that ends when the GPU has done its work, and a fetch, look like a wait for a lock."""
    calls, stack = TorchCalls(), list[Spot]()
    loss = SimpleNamespace(item=lambda: stack.extend(stack_of(sys._getframe(1))))
    loss.item()
    engine = frame("_engine_run_backward", "autograd/graph.py").code
    assert not calls.runs_elsewhere(engine)
    assert calls.what(Wait(LOCK), stack) == Wait(LOCK)
    calls.has_gpu = True
    assert calls.runs_elsewhere(engine)
    assert [calls.what(Wait(state), stack).state for state in (LOCK, SLEEP)] == [GPU, SLEEP]
    fetch = frame("_try_get_data", "utils/data/dataloader.py")
    assert calls.what(Wait(LOCK), [fetch]) == Wait(PIPE)
    assert calls.what(Wait(LOCK, HOLDER), [fetch]) == Wait(LOCK, HOLDER)

    # Of the engine's threads, one for each GPU, the busiest is this rank's.
    for tid, comm, worked in ((7, "pt_autograd_0", 5), (8, "pt_autograd_1", 90), (9, "python", 99)):
        (tmp_path / f"{tid}").mkdir()
        (tmp_path / f"{tid}" / "comm").write_text(f"{comm}\n")
        (tmp_path / f"{tid}" / "schedstat").write_text(f"{worked} 4 2\n")
    (tmp_path / "10").mkdir()  # It has ended.
    assert engine_thread(str(tmp_path)) == 8
    assert engine_thread(str(tmp_path / "10")) is None


BEFORE = ThreadLook(at=50 * MS, cpu=7 * MS, queue=3 * MS, own_queue=2 * MS, call=b"")


def later(at: int, cpu: int = 0, queue: int = 0, own_queue: int = 0, **found: Any) -> ThreadLook:
    """Return a look that much after BEFORE."""
    clocks = (BEFORE.at + at, BEFORE.cpu + cpu, BEFORE.queue + queue, BEFORE.own_queue + own_queue)
    return ThreadLook(*clocks, **found)


CALLS = {b"lock": Wait(LOCK), b"python": Wait(LOCK, link=PYTHON), b"sleep": Wait(SLEEP)}
HOLDER = "thread `saver` at dump (a.py:88)"


def rounded(shares: Shares) -> dict[str, float]:
    return {wait.mount or wait.state: round(share, 3) for wait, share in shares}


@pytest.mark.parametrize(
    ("ran", "queued", "other", "call", "shares"),
    [
        # It used nearly all of the delay, wherever it was before and after.
        (75, 0, 0, b"sleep", {RUNNING: 1.0}),
        (40, 40, 0, b"python", {RUNNING: 0.5, CPU_QUEUE: 0.5}),
        # It ran for some of the time, and another for the rest; perhaps it has just got it back.
        (20, 0, 80, b"python", {RUNNING: 0.2, HOLDER: 0.8}),
        (20, 0, 80, b"running", {RUNNING: 0.2, HOLDER: 0.8}),
        # That the sampler waits does not make it wait for the same.
        (0, 0, 100, b"sleep", {SLEEP: 1.0}),
        (20, 0, 80, b"lock", {RUNNING: 0.2, LOCK: 0.8}),
        # Where CPUs are short, who has the interpreter waits as well.
        (0, 0, 21, b"python", {HOLDER: 1.0}),
        # A call of C waits for something and keeps the interpreter: nothing says for what.
        (0, 0, 20, b"python", {BLOCKED: 1.0}),
    ],
)
def test_delay_of_the_sampler_is_divided_by_what_the_clocks_say(
    ran: int, queued: int, other: int, call: bytes, shares: dict[str, float]
) -> None:
    """It came 80 ms late, 100 ms after the last look; the *other* thread ran for so long."""
    first, by = later(100 * MS, ran * MS, queued * MS, call=call), Other(other * MS, HOLDER)

    assert rounded(held(BEFORE, first, 80 * MS, by, CALLS.get, is_there=True)) == shares


@pytest.mark.parametrize(
    ("turns", "is_there", "what"), [(12, True, HOLDER), (11, True, SLEEP), (1, False, HOLDER)]
)
def test_who_asked_for_the_interpreter_waited_for_it(turns: int, is_there: bool, what: str) -> None:
    """It asks each 5 ms, and may have had it before the sampler; then it is elsewhere by now."""
    first, by = later(100 * MS, turns=turns, call=b"sleep"), Other(100 * MS, HOLDER)

    assert rounded(held(BEFORE, first, 80 * MS, by, CALLS.get, is_there)) == {what: 1.0}


@pytest.mark.parametrize(
    ("began_in", "then", "shares"),
    [
        (b"running", {"cpu": 300, "queue": 300}, {RUNNING: 1.0}),  # The clocks are read in turn.
        (b"running", {"cpu": 50, "call": b"sleep"}, {RUNNING: 0.5, SLEEP: 0.5}),
        (b"lock", {"cpu": 50, "call": b"lock"}, {RUNNING: 0.5, LOCK: 0.5}),
        # Handing over the interpreter takes that long, and so did the sampler's own wait for a CPU.
        (b"lock", {"cpu": 91, "call": b"lock"}, {RUNNING: 1.0}),
        (b"lock", {"cpu": 40, "own_queue": 20, "call": b"lock"}, {RUNNING: 0.5, LOCK: 0.5}),
        # At the end it waits for the interpreter, after what it waited for before.
        (b"sleep", {"call": b"python"}, {SLEEP: 1.0}),
        (b"lock", {"call": b"python", "other": 100}, {LOCK: 1.0}),
        # Who ran for a quarter of that time has it; otherwise that is not known.
        (b"python", {"cpu": 60, "call": b"python", "other": 10}, {RUNNING: 0.6, HOLDER: 0.4}),
        (b"running", {"call": b"python", "other": 24}, {LOCK: 1.0}),
        # Ready at both looks: the kernel counts a wait for a CPU when it ends.
        (b"running", {"call": b"running"}, {CPU_QUEUE: 1.0}),
        (b"running", {"call": b"running", "is_on_cpu": True}, {BLOCKED: 1.0}),
        # Since the first look it has gone on to another stage.
        (b"lock", {"is_elsewhere": True, "cpu": 50, "call": b"sleep"}, {SLEEP: 1.0}),
        (b"lock", {"is_elsewhere": True, "is_on_cpu": True}, {RUNNING: 1.0}),
        (b"lock", {"is_elsewhere": True}, {CPU_QUEUE: 1.0}),
        (b"lock", {"is_elsewhere": True, "call": b"python", "other": 24}, {RUNNING: 1.0}),
        (b"lock", {"is_elsewhere": True, "call": b"python", "other": 25}, {HOLDER: 1.0}),
    ],
)
def test_time_between_two_looks_is_divided(
    began_in: bytes, then: dict[str, Any], shares: dict[str, float]
) -> None:
    """The clocks tell what it ran and queued, and the calls what it was blocked in otherwise."""
    known: dict[str, Any] = {"at": 100, "call": b"running"} | then
    first, other = BEFORE._replace(call=began_in), Other(known.pop("other", 0), HOLDER)
    told = at_last if known.pop("is_elsewhere", False) else split

    assert rounded(told(first, later(**known), other, CALLS.get)) == shares
