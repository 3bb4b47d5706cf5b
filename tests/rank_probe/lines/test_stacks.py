"""A late rank's stack is sampled while it is late, and a healthy rank's never."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rank_probe.guest.guard import failures
from rank_probe.lines import sampling
from rank_probe.lines.loop_frames import stack_of
from rank_probe.lines.sampling import line_of
from rank_probe.lines.stacks import Stacks

HERE = "test_stacks.py"


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sample often, so that a test takes milliseconds, and expect no failure."""
    monkeypatch.setattr(sampling, "INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(sampling, "LOOK_SECONDS", 0.001)
    before = failures.count
    yield
    assert failures.count == before
    assert until(lambda: not sampling_threads())


def until(done: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until *done*; False if it takes too long."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def sampling_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "rank_probe_stacks"]


class Rank:
    """A thread that trains, in the stage that the test sets, and its sampler."""

    def __init__(self, train: Callable[[Callable[[], bool]], None], **environment: str) -> None:
        self.stage = "data"
        self._done = threading.Event()
        self._ready = threading.Event()
        self._train = train
        self._environment = environment
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self._ready.wait(10)

    def _run(self) -> None:
        thread = threading.get_ident()
        self.stacks = Stacks(self._environment, lambda: thread, lambda: self.stage)
        self._ready.set()
        self._train(self._done.is_set)

    def end(self) -> None:
        self.stacks.watch(None)
        self._done.set()
        self.thread.join()

    def takes(self, samples: int = 40) -> bool:
        """Wait for so many more samples."""
        before = self.stacks.samples
        return until(lambda: self.stacks.samples >= before + samples)


@contextmanager
def rank(train: Callable[[Callable[[], bool]], None], **environment: str) -> Iterator[Rank]:
    made = Rank(train, **environment)
    try:
        yield made
    finally:
        made.end()


class Corpus:
    """An iterator that is slow in one line."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over

    def __iter__(self) -> "Corpus":
        return self

    def __next__(self) -> int:
        if self._is_over():
            raise StopIteration
        time.sleep(0.002)  # slow
        return 1


def reads(is_over: Callable[[], bool]) -> None:
    for _ in Corpus(is_over):
        pass


def waits_in_the_library(is_over: Callable[[], bool]) -> None:
    condition = threading.Condition()
    while not is_over():
        with condition:
            condition.wait(0.002)  # library


def number_of(comment: str) -> int:
    """Return the number of the line of this file that ends in *comment*."""
    return number_of_line(Path(__file__), comment)


def number_of_line(file: Path, comment: str) -> int:
    """Return the number of the line of *file* that ends in *comment*."""
    lines = file.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(comment))


def test_slow_line_is_named_first() -> None:
    """The user's line that takes the time is there with its function, file, stage and share."""
    with rank(reads) as late:
        late.stacks.watch("data")
        assert late.takes(100)
        first = late.stacks.lines()[0]

    assert first["stage"] == "data"
    assert first["place"].startswith("Corpus.__next__ (")
    assert first["place"].endswith(f"{HERE}:{number_of('# slow')})")
    assert 0.5 < first["share"] <= 1


def test_line_that_called_a_library_is_the_place() -> None:
    """Below the user's line all frames are Python's own."""
    with rank(waits_in_the_library) as late:
        late.stacks.watch("data")
        assert late.takes(100)
        first = late.stacks.lines()[0]

    assert first["place"].startswith("waits_in_the_library (")
    assert first["place"].endswith(f"{HERE}:{number_of('# library')})")


def test_healthy_rank_is_never_sampled() -> None:
    """Without a lateness there is no thread, no sample and no line."""
    with rank(reads) as healthy:
        for _ in range(3):
            healthy.stacks.watch(None)
        assert sampling_threads() == []
        assert healthy.stacks.lines() == []
        assert healthy.stacks.iterating_share("data") is None
        assert healthy.stacks.samples == 0


def test_end_of_the_lateness_ends_the_sampling() -> None:
    """The thread goes, its lines with it; a new lateness begins from nothing."""
    with rank(reads) as late:
        late.stacks.watch("data")
        assert late.takes(100)
        late.stacks.watch(None)
        assert late.stacks.lines() == []
        assert until(lambda: not sampling_threads())
        taken = late.stacks.samples
        time.sleep(0.02)
        assert late.stacks.samples == taken
        late.stacks.watch("data")
        assert late.stacks.lines() == []
        assert late.takes()


def test_one_lateness_has_one_thread() -> None:
    """Every push says again that the rank is late."""
    with rank(reads) as late:
        for _ in range(5):
            late.stacks.watch("data")
        assert len(sampling_threads()) == 1


def test_switch_turns_it_off() -> None:
    """With RANK_PROBE_STACKS=0 a late rank is not sampled either."""
    with rank(reads, RANK_PROBE_STACKS="0") as late:
        late.stacks.watch("data")
        assert sampling_threads() == []
        assert late.stacks.lines() == []


def test_waiting_for_others_explains_nothing() -> None:
    """Samples in sync are not taken: the stack of a waiting rank has nothing to do with it."""
    with rank(reads) as late:
        late.stage = "sync"
        late.stacks.watch("data")
        time.sleep(0.05)
        assert late.stacks.samples == 0
        late.stage = "data"
        assert late.takes()


def test_lines_of_the_late_stage_come_first() -> None:
    """What the judge names leads, and the other stages follow."""
    with rank(reads) as late:
        late.stacks.watch("forward")
        assert late.takes(100)
        late.stage = "forward"
        assert late.takes()
        stages = [each["stage"] for each in late.stacks.lines()]
        late.stacks.watch("data")
        assert late.stacks.lines()[0]["stage"] == "data"

    assert stages[0] == "forward"
    assert "data" in stages
    assert len(stages) <= 5


def test_share_of_iterating_is_measured_on_a_live_thread() -> None:
    """A loop that waits for its own iterator spends nearly all of its time fetching."""
    with rank(reads) as late:
        late.stacks.watch("data")
        assert late.takes(100)
        fetching = late.stacks.iterating_share("data")
        assert late.stacks.iterating_share("forward") is None
    with rank(waits_in_the_library) as late:
        late.stacks.watch("data")
        assert late.takes(100)
        working = late.stacks.iterating_share("data")

    assert fetching is not None
    assert fetching > 0.8
    assert working == 0.0


def test_thread_that_has_ended_has_no_line() -> None:
    """A training thread that is gone costs nothing and names nothing."""
    with rank(lambda is_over: None) as gone:
        gone.thread.join()
        gone.stacks.watch("data")
        assert gone.takes()
        assert gone.stacks.lines() == []


def test_stack_of_libraries_has_no_line() -> None:
    """A framework that trains without a line of the user's names none."""
    assert line_of(stack_of(sys._getframe()), lambda file: False) is None
