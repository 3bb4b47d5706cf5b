"""Tests of a process: its durations, the events that tell them, and the collector's pauses."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rank_probe.measure.tape import PythonTape, new_tape
from rank_probe.process import garbage
from rank_probe.process.garbage import GarbagePauses
from rank_probe.process.lifecycle import Lifecycle, process_age_seconds
from rank_probe.report.lifecycle_events import QUIET_SECONDS, LifecycleEvents
from rank_probe.wire.snapshot import MOST_EVENTS
from rank_probe.wire.stages import CHECKPOINT, DATA, EVAL, STAGES


def durations(life: Lifecycle) -> dict[str, float]:
    """Return how long each event took that has ended."""
    return {
        event: until - since
        for event, (since, until) in life.spans.items()
        if since is not None and until is not None
    }


MEETS = ("rendezvous_begins", 1, "rendezvous_ended", "first_step_done", "end", 50)
# How old the process was when the probe started, what happens, with seconds between, the durations.
LIVES: dict[str, tuple[float | None, tuple[str | int, ...], dict[str, float]]] = {
    "each event has the time between its own two moments": (
        3.0,
        (
            *(1, "rendezvous_begins", 10, "rendezvous_ended"),
            *(100, "first_step_done", 1_000, "end"),
        ),
        {"init": 4.0, "rendezvous": 10.0, "first_step": 100.0, "end": 1_000.0},
    ),
    "a rank that is stuck in the rendezvous has no duration for it": (
        3.0,
        ("rendezvous_begins", 60),
        {"init": 3.0},
    ),
    "a rendezvous that failed is forgotten": (
        3.0,
        ("rendezvous_begins", 60, "rendezvous_begins", 2, "rendezvous_ended"),
        {"init": 63.0, "rendezvous": 2.0},
    ),
    # Where the process's start is unknown, there is no init.
    "a rank alone has a first step too, from the probe on": (
        None,
        (8, "first_step_done"),
        {"first_step": 8.0},
    ),
    "a second process group, or a step noted again, moves nothing": (
        0.0,
        MEETS * 2,
        {"init": 0.0, "rendezvous": 1.0, "first_step": 0.0, "end": 0.0},
    ),
}


@pytest.mark.parametrize("case", LIVES)
def test_events_have_their_durations(case: str) -> None:
    """Those that are over."""
    age, happens, expected = LIVES[case]
    now = 1_000.0
    life = Lifecycle(lambda: now, age=lambda: age)
    for each in happens:
        if isinstance(each, str):
            getattr(life, each)()
        else:
            now += each

    assert durations(life) == expected


def test_process_start_is_read_from_linux() -> None:
    """A process that has just started is younger than this one, and than a minute."""
    code = "from rank_probe.process.lifecycle import process_age_seconds as age; print(age())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    mine = process_age_seconds()

    assert mine is not None
    assert -0.02 <= float(child.stdout) < mine < 86_400


def test_process_name_may_hold_anything(tmp_path: Path) -> None:
    """Parentheses and blanks in the command do not shift the fields."""
    stat = tmp_path / "stat"
    ticks = 10_000
    fields = " ".join(["S", *["7"] * 18, str(ticks), "0"])
    stat.write_text(f"42 (a) b (c)) {fields}")
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")

    assert process_age_seconds(stat) == pytest.approx(since_boot, abs=5)


@pytest.mark.parametrize("content", [None, "", "42 (python) S 1"])
def test_without_linux_the_start_is_unknown(tmp_path: Path, content: str | None) -> None:
    """A file that is missing or of another shape is no reading."""
    stat = tmp_path / "stat"
    if content is not None:
        stat.write_text(content)

    assert process_age_seconds(stat) is None


UNIX = 1_700_000_000.0


class Process:
    """A process that a test leads through its life; it began 4 s before its probe."""

    def __init__(self) -> None:
        self.now = 100.0
        self.life = Lifecycle(lambda: self.now, age=lambda: 4.0)
        self._spent = [0] * len(STAGES)
        self.stage: int | None = DATA
        self._elapsed = 0.0
        self.events = LifecycleEvents(self.life, lambda: self.now, lambda: UNIX + self.now)

    def goes_on(self, seconds: float, stage: int | None = None) -> None:
        """Spend *seconds*, in *stage* if it is given."""
        self.now += seconds
        if stage is None:
            self._elapsed += seconds
        else:
            self._spent[stage] += round(seconds * 1e9)
            self._elapsed = 0.0

    def enters(self, stage: int) -> None:
        if self.stage in (CHECKPOINT, EVAL):
            self._spent[self.stage] += round(self._elapsed * 1e9)
        self.stage, self._elapsed = stage, 0.0

    def told(self) -> list[tuple[str, float, float | None]]:
        """Return the events as a look tells them: name, seconds of our clock, duration."""
        return [_short(event) for event in self.events.look(self.stage, self._spent, self._elapsed)]

    def looks(self, seconds: int) -> None:
        """Look once in each of the next *seconds*."""
        for _ in range(seconds):
            self.goes_on(1)
            self.told()


def _short(event: dict[str, Any]) -> tuple[str, float, float | None]:
    seconds = event["seconds"]
    began = event["began_timestamp_seconds"] - UNIX
    return event["event"], round(began, 3), None if seconds is None else round(seconds, 3)


@pytest.fixture
def process() -> Process:
    return Process()


def test_start_is_told_as_it_happens(process: Process) -> None:
    """What lasts is told from its beginning, a moment when it has come."""
    assert process.told() == [("init", 96.0, None)]

    process.goes_on(10)
    process.life.rendezvous_begins()
    process.goes_on(5)
    assert process.told() == [("init", 96.0, 14.0), ("rendezvous", 110.0, None)]

    process.life.rendezvous_ended()
    process.goes_on(30)
    process.life.first_step_done()
    expected = [("init", 96.0, 14.0), ("rendezvous", 110.0, 5.0), ("first_step", 115.0, 30.0)]
    assert process.told() == expected

    process.goes_on(100)
    process.life.end()
    assert process.told() == [*expected, ("end", 145.0, 100.0)]


def test_checkpoint_is_told_while_it_lasts(process: Process) -> None:
    """Its beginning is exact, and its duration is the time in the stage."""
    process.told()
    process.enters(CHECKPOINT)
    process.looks(3)
    assert process.told()[1:] == [("checkpoint", 100.0, None)]

    process.goes_on(0.5)
    process.enters(DATA)
    process.looks(2)
    assert process.told()[1:] == [("checkpoint", 100.0, 3.5)]


def test_parts_of_a_checkpoint_are_one_event(process: Process) -> None:
    """Files written one after the other, with little between them, are one checkpoint."""
    process.told()
    for _ in range(4):
        process.goes_on(0.6, CHECKPOINT)
        process.goes_on(0.2)
        process.told()
    process.looks(2)

    assert process.told()[1:] == [("checkpoint", 100.2, 2.4)]


def test_evaluation_in_every_step_is_one_event_a_minute(process: Process) -> None:
    """A loop that evaluates all the time does not fill the list with it."""
    process.told()
    for _ in range(20):
        process.goes_on(0.5, EVAL)
        process.looks(5)

    told = process.told()[1:]
    assert [name for name, _, _ in told] == ["evaluation", "evaluation"]
    assert told[1][1] - told[0][1] >= QUIET_SECONDS


def test_end_closes_what_lasted(process: Process) -> None:
    """A checkpoint right before the end is told with its duration, for there is no later look."""
    process.life.first_step_done()
    process.told()
    process.goes_on(2, CHECKPOINT)
    process.life.end()
    process.stage = None

    assert ("checkpoint", 100.0, 2.0) in process.told()


def test_only_the_last_events_are_kept_and_numbers_go_on(process: Process) -> None:
    """A snapshot stays small, and its reader sees how many it missed."""
    for _ in range(MOST_EVENTS + 2):
        process.goes_on(1, CHECKPOINT)
        process.looks(int(QUIET_SECONDS) + 1)

    numbers = [event["number"] for event in process.events.look(DATA, process._spent, 0.0)]
    assert numbers == list(range(4, MOST_EVENTS + 4))


compiled = pytest.mark.skipif(new_tape is PythonTape, reason="only where a compiler built it")


class TakesTime:
    """Takes 20 ms while it is collected."""

    def __init__(self) -> None:
        self.me = self  # Only the collector frees it.

    def __del__(self) -> None:
        time.sleep(0.02)


@compiled
def test_a_collection_is_counted_once() -> None:
    """What passes while the collector runs is added up, and nothing else; nor after `undo`."""
    pauses, before = GarbagePauses(), list(gc.callbacks)
    patches = pauses.attach()
    TakesTime()
    began = time.perf_counter()
    gc.collect()
    took = time.perf_counter() - began
    time.sleep(0.2)
    patches.undo()
    TakesTime()
    gc.collect()

    assert 0.02 <= (pauses.seconds() or 0) <= took
    assert gc.callbacks == before


class Terminated(BaseException):
    """What a handler raises, like SystemExit."""


def test_signal_during_a_collection_reaches_the_user() -> None:
    """Most of the signals that arrive at a bad moment do so there: it may take a second."""

    def handler(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated

    # Python drops what is raised in a callback, and other tests' packages may have left one.
    others = gc.callbacks[:]
    gc.callbacks.clear()
    patches, raised = GarbagePauses().attach(), 0
    heap = [[number] for number in range(400_000)]
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.004)
            try:
                gc.collect()
                time.sleep(0.1)
            except Terminated:
                raised += 1
    finally:
        signal.signal(signal.SIGALRM, before)
        patches.undo()
        gc.callbacks[:] = others

    assert raised == 5
    assert len(heap) == 400_000


def test_not_measured_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback in Python would take the user's signals: there is none, and no reading."""
    monkeypatch.setattr(garbage, "_tape", None)
    before = list(gc.callbacks)
    pauses = GarbagePauses()
    pauses.attach()

    assert gc.callbacks == before
    assert pauses.seconds() is None
