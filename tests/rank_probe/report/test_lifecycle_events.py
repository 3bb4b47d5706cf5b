"""Tests of the events that a process tells of its life."""

from typing import Any

import pytest

from rank_probe.process.lifecycle import Lifecycle
from rank_probe.report.lifecycle_events import ALWAYS_TOLD_SECONDS, QUIET_SECONDS, LifecycleEvents
from rank_probe.wire.snapshot import MOST_EVENTS
from rank_probe.wire.stages import CHECKPOINT, DATA, EVAL, STAGES

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


def test_long_one_soon_after_another_is_told(process: Process) -> None:
    """What may be stuck is told, however lately the last one was."""
    process.told()
    process.goes_on(1, CHECKPOINT)
    process.looks(3)
    process.enters(CHECKPOINT)
    process.looks(int(ALWAYS_TOLD_SECONDS))

    assert process.told()[-1] == ("checkpoint", 104.0, None)


def test_end_closes_what_lasted(process: Process) -> None:
    """A checkpoint right before the end is told with its duration, for there is no later look."""
    process.life.first_step_done()
    process.told()
    process.goes_on(2, CHECKPOINT)
    process.life.end()
    process.stage = None

    assert ("checkpoint", 100.0, 2.0) in process.told()


def test_stopped_probe_tells_no_stage(process: Process) -> None:
    """The stage in which timing stopped does not go on."""
    process.stage = None
    process.looks(30)

    assert [name for name, _, _ in process.told()] == ["init"]


def test_only_the_last_events_are_kept_and_numbers_go_on(process: Process) -> None:
    """A snapshot stays small, and its reader sees how many it missed."""
    for _ in range(MOST_EVENTS + 2):
        process.goes_on(1, CHECKPOINT)
        process.looks(int(QUIET_SECONDS) + 1)

    numbers = [event["number"] for event in process.events.look(DATA, process._spent, 0.0)]
    assert numbers == list(range(4, MOST_EVENTS + 4))
