"""A late rank's stack is sampled while it is late; samples become shares of their stage."""

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from rank_probe.guest.guard import failures
from rank_probe.lines import sampling
from rank_probe.lines.loop_frames import stack_of
from rank_probe.lines.sample_window import LEAST_SAMPLES, LineShare, SampleWindow, StackSample
from rank_probe.lines.sampling import line_of
from rank_probe.lines.user_code import CodeLine
from tests.exporter.running import wait_until
from tests.rank_probe.lines.late_rank import Done, Work, late_rank, number_of_line


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sample often, so that a test takes milliseconds, and expect no failure."""
    monkeypatch.setattr(sampling, "INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(sampling, "LOOK_SECONDS", 0.001)
    before = failures.count
    yield
    assert failures.count == before
    wait_until(lambda: not sampling_threads())


def sampling_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "rank_probe_stacks"]


class Corpus:
    """An iterator that is slow in one line."""

    def __init__(self, is_over: Done) -> None:
        self._is_over = is_over

    def __iter__(self) -> "Corpus":
        return self

    def __next__(self) -> int:
        if self._is_over():
            raise StopIteration
        time.sleep(0.002)  # slow
        return 1


def reads(is_over: Done) -> None:
    for _ in Corpus(is_over):
        pass


def waits_in_the_library(is_over: Done) -> None:
    condition = threading.Condition()
    while not is_over():
        with condition:
            condition.wait(0.002)  # library


@pytest.mark.parametrize(
    ("work", "function", "comment", "least_fetching", "most_fetching"),
    [
        (reads, "Corpus.__next__", "# slow", 0.8, 1.0),
        # Below the user's line all frames are Python's own.
        (waits_in_the_library, "waits_in_the_library", "# library", 0.0, 0.0),
    ],
)
def test_slow_line_is_named_first(
    work: Work, function: str, comment: str, least_fetching: float, most_fetching: float
) -> None:
    """With its function, file, stage and share, and how often the loop fetched its next item."""
    with late_rank(work) as late:
        late.stacks.watch("data")
        late.takes(100)
        first = late.stacks.lines()[0]
        fetching = late.stacks.iterating_share("data")
        assert late.stacks.iterating_share("forward") is None

    assert first["stage"] == "data"
    assert first["place"].startswith(f"{function} (")
    assert first["place"].endswith(f"test_stacks.py:{number_of_line(__file__, comment)})")
    assert 0.5 < first["share"] <= 1
    assert fetching is not None
    assert least_fetching <= fetching <= most_fetching


def test_healthy_rank_is_never_sampled() -> None:
    """Without a lateness, or with RANK_PROBE_STACKS=0, there is no thread, sample or line."""
    with late_rank(reads) as healthy, late_rank(reads, RANK_PROBE_STACKS="0") as late:
        for _ in range(3):
            healthy.stacks.watch(None)
            late.stacks.watch("data")
        assert sampling_threads() == []
        for stacks in (healthy.stacks, late.stacks):
            assert (stacks.lines(), stacks.states(), stacks.samples) == ([], [], 0)
            assert stacks.iterating_share("data") is None


def test_end_of_the_lateness_ends_the_sampling() -> None:
    """The thread, which is one for all pushes, goes with its lines; a new lateness starts anew."""
    with late_rank(reads) as late:
        for _ in range(5):
            late.stacks.watch("data")
        assert len(sampling_threads()) == 1
        late.takes(100)
        late.stacks.watch(None)
        assert late.stacks.lines() == []
        wait_until(lambda: not sampling_threads())
        taken = late.stacks.samples
        time.sleep(0.02)
        assert late.stacks.samples == taken
        late.stacks.watch("data")
        assert late.stacks.lines() == []
        late.takes()


def test_thread_that_has_ended_has_no_line() -> None:
    """A training thread that is gone costs nothing and names nothing; nor do libraries alone."""
    with late_rank(lambda is_over: None) as gone:
        gone.thread.join()
        gone.stacks.watch("data")
        gone.takes()
        assert gone.stacks.lines() == []
    assert line_of(stack_of(sys._getframe()), lambda file: False) is None


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

    Samples without a line of the user's make the others smaller.
    """
    seen = window(("forward", LOSS, 90), ("data", READ, 30), ("data", PARSE, 10))
    assert seen.lines("data", 5) == [
        LineShare("data", READ, 0.75),
        LineShare("data", PARSE, 0.25),
        LineShare("forward", LOSS, 1.0),
    ]
    assert seen.lines("data", 1) == [LineShare("data", READ, 0.75)]
    assert seen.lines("forward", 5)[0].line == LOSS
    assert seen.iterating_share("data") == 0.75
    add(seen, "data", None, 20)
    assert seen.lines("data", 1) == [LineShare("data", READ, 0.5)]


def test_few_samples_say_nothing() -> None:
    """The first moments of a lateness name no line, and no page a line with 0 % of a stage."""
    few = window(("data", READ, LEAST_SAMPLES - 1))
    assert few.lines("data", 5) == []
    assert few.iterating_share("data") is None
    assert few.iterating_share("forward") is None
    add(few, "data", READ, 280)
    add(few, "data", PARSE, 1)
    assert [each.line for each in few.lines("data", 5)] == [READ]


def test_fetches_get_the_name_of_their_stage() -> None:
    """What was sampled before it was known that batches are read in `other` keeps its line."""
    seen = window(("other", READ, 60), ("other", LOSS, 20), ("data", READ, 20))
    seen.rename_fetches("other", "data")

    assert seen.lines("data", 5) == [LineShare("data", READ, 1.0), LineShare("other", LOSS, 1.0)]
    assert (seen.iterating_share("data"), seen.iterating_share("other")) == (1.0, 0.0)


def test_only_the_latest_samples_count() -> None:
    """What a rank did long ago is forgotten, and takes no memory."""
    seen = window(("data", READ, 500), ("data", PARSE, 100), most=100)

    assert seen.lines("data", 5) == [LineShare("data", PARSE, 1.0)]
    assert seen.iterating_share("data") == 0.0


def test_first_line_does_not_flap() -> None:
    """Two lines of about equal cost do not take turns: each first line is a new series."""
    seen = window(("data", READ, 50), ("data", PARSE, 45))
    assert [each.line for each in seen.lines("data", 5)] == [READ, PARSE]
    add(seen, "data", PARSE, 10)
    assert [each.line for each in seen.lines("data", 5)] == [READ, PARSE]
    add(seen, "data", PARSE, 10)
    assert [each.line for each in seen.lines("data", 5)] == [PARSE, READ]
